"""`gradlab.update.clip`, under the name that scripts import."""

from gradlab.update.clip import *  # noqa: F403
