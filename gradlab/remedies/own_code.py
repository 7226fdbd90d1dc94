"""Which lines a user can change: of a model, data and loss of their own; what gradlab ships has fields for them."""

from __future__ import annotations

from gradlab.config.schema import Config
from gradlab.data.custom import CustomData
from gradlab.data.text import TextData
from gradlab.data.tokens import TokensData
from gradlab.models.custom import CustomOption
from gradlab.update.custom_loss import CustomLoss
from gradlab.update.model_loss import ModelLoss

OF_THE_DATA = ("data", "inputs", "targets")
"""Names of lines that are to be changed in data of the user's own."""
OF_THE_MODEL = (
    *("initial weights", "initial biases", "activation", "graph", "forward pass", "logits", "time steps", "depth"),
)
"""The same of a model."""
USERS = (CustomOption, CustomData, TextData, TokensData, CustomLoss, ModelLoss)
"""Options that hold code, or data, of the user's own."""


def is_users(option: object) -> bool:
    """Whether an option is a user's own: by what it holds, or of a plugin."""
    return isinstance(option, USERS) or not type(option).__module__.startswith("gradlab.")


def can_change(name: str, c: Config) -> bool:
    """Whether the lines that a proposal names are of the user's own."""
    in_model, in_data = name in OF_THE_MODEL, name in OF_THE_DATA
    return is_users(c.model) if in_model else is_users(c.data) if in_data else True
