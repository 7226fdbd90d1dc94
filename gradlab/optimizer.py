"""Optimizers of `gradlab.update`, under the name that scripts import."""

from gradlab.update.adafactor import *  # noqa: F403
from gradlab.update.adam import *  # noqa: F403
from gradlab.update.custom_optimizer import *  # noqa: F403
from gradlab.update.lion import *  # noqa: F403
from gradlab.update.muon import *  # noqa: F403
from gradlab.update.optimizer import *  # noqa: F403
from gradlab.update.sgd import *  # noqa: F403
from gradlab.update.stable_adamw import *  # noqa: F403
from gradlab.update.stepping import *  # noqa: F403
