"""`gradlab.update.precision`, under the name that scripts import."""

from gradlab.update.precision import *  # noqa: F403
