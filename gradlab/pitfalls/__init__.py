"""`pitfall=`: wrong ways of updating, run for real. Each replaces one function of the shipped `Update`."""

from gradlab.pitfalls import accumulating, clipping, scaling, stepping, synchronising
from gradlab.pitfalls.base import Pitfall

__all__ = ["Pitfall", "accumulating", "clipping", "scaling", "stepping", "synchronising"]
