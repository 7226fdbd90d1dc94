"""`gradlab.update.optimizer`, under the name that scripts import."""

from gradlab.update.optimizer import *  # noqa: F403
