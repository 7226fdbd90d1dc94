"""`gradlab.update.gradients`, under the name that scripts import."""

from gradlab.update.gradients import *  # noqa: F403
