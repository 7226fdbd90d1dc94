"""Which lines a user can change: those of a model and data of their own; what gradlab ships has fields for them."""

from __future__ import annotations

from gradlab.config.schema import Config
from gradlab.data.custom import CustomData
from gradlab.data.text import TextData
from gradlab.data.tokens import TokensData
from gradlab.models.custom import CustomOption

OF_THE_DATA = ("data", "inputs", "targets")
"""Names of lines that are to be changed in data of the user's own."""
OF_THE_MODEL = ("initial weights", "initial biases", "activation", "graph", "logits", "time steps", "depth")
"""The same of a model."""


def is_own(name: str, c: Config) -> bool:
    """Whether the lines that a proposal names are in code, or of data, of the user's own."""
    if name in OF_THE_MODEL:
        return isinstance(c.model, CustomOption)
    return name not in OF_THE_DATA or isinstance(c.data, (CustomData, TextData, TokensData))
