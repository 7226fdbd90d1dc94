"""`gradlab.update.loss`, under the name that scripts import."""

from gradlab.update.loss import *  # noqa: F403
