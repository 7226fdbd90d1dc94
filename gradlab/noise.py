"""`gradlab.update.noise`, under the name that scripts import."""

from gradlab.update.noise import *  # noqa: F403
