"""Models: importing this registers their options; PyTorch is imported when one is built."""

from __future__ import annotations

from gradlab.models.options import Model
from gradlab.models.spec import Spec

__all__ = ["Model", "Spec"]
