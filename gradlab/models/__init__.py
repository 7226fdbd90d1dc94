"""Models: importing this registers their options; PyTorch is imported when one is built."""

from __future__ import annotations

from gradlab.data.spec import Spec
from gradlab.models.options import Model

__all__ = ["Model", "Spec"]
