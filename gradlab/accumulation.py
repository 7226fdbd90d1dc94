"""`gradlab.update.accumulation`, under the name that scripts import."""

from gradlab.update.accumulation import *  # noqa: F403
