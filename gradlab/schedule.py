"""`gradlab.update.schedule`, under the name that scripts import."""

from gradlab.update.schedule import *  # noqa: F403
