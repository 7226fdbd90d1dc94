"""Data sets: importing this registers their options; PyTorch is imported when one is loaded."""

from __future__ import annotations

from gradlab.data.adding import AddingData
from gradlab.data.base import IGNORE, Data, Split, Splits, TensorSplit, TokenSplit
from gradlab.data.check import check
from gradlab.data.custom import CustomData
from gradlab.data.digits import DigitsData
from gradlab.data.episodes import EpisodesData
from gradlab.data.order import epoch_order, window
from gradlab.data.synthetic import SyntheticData
from gradlab.data.text import TextData
from gradlab.data.vision import CIFAR10Data, MNISTData

__all__ = [
    "IGNORE",
    "AddingData",
    "CIFAR10Data",
    "CustomData",
    "Data",
    "DigitsData",
    "EpisodesData",
    "MNISTData",
    "Split",
    "Splits",
    "SyntheticData",
    "TensorSplit",
    "TextData",
    "TokenSplit",
    "check",
    "epoch_order",
    "window",
]
