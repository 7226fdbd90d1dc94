"""`gradlab.update.step`, under the name that scripts import."""

from gradlab.update.step import *  # noqa: F403
