"""Why an operation has no finite result, from the values of its operands where the result is not finite.

Anything else that is not finite, of finite operands, is an overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

OVERFLOW = "overflow"
NOTHING = "0/0: a mean of nothing"
MASKED = "a softmax whose entries are all masked"


def failure(name: str, args: Sequence[Any], options: Mapping[str, Any], result: torch.Tensor) -> str:
    """The failure of an operation, in words.

    name: PyTorch's name of it. args, options: what it was given, before it may have written to it. result: what is not
    finite of it.
    """
    name = name.rstrip("_").lstrip("_")
    if "softmax" in name or "attention" in name or name == "logsumexp":
        return MASKED if masked(args, options) else OVERFLOW
    operands = [at(value, result) for value in args[:2]]
    if (tell := TELL.get(name)) is not None and operands and all(o is not None for o in operands):
        return tell(*operands) or OVERFLOW
    if name in MEANS and bool(result.isnan().any()) and all(bool(torch.isfinite(t).all()) for t in values(args)):
        return NOTHING if name != "mean" or not args[0].numel() else OVERFLOW
    return OVERFLOW


def at(value: Any, result: torch.Tensor) -> torch.Tensor | None:
    """An operand's elements where the result is not finite; None where they do not correspond."""
    if isinstance(value, bool) or not isinstance(value, int | float | torch.Tensor):
        return None
    operand = torch.as_tensor(value, device=result.device).detach()
    if operand.is_complex() or result.is_complex():
        return None
    try:
        return operand.expand(result.shape)[~torch.isfinite(result.detach())]
    except RuntimeError:
        return None


def values(args: Sequence[Any]) -> list[torch.Tensor]:
    return [a.detach() for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]


def masked(args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether some row of the scores, or of a mask, is minus infinity throughout."""
    scores = values([*args, *options.values()])
    dim = args[1] if len(args) > 1 and isinstance(args[1], int) else -1
    dim = args[1][0] if len(args) > 1 and isinstance(args[1], list) and len(args[1]) == 1 else dim
    return any(s.dim() > 0 and bool((s == -torch.inf).all(dim if len(scores) == 1 else -1).any()) for s in scores)


def divided(above: torch.Tensor, below: torch.Tensor) -> str | None:
    none = below == 0
    if bool((none & (above == 0)).any()):
        return "0/0"
    if bool((above.isinf() & below.isinf()).any()):
        return "inf/inf"
    return "a division by zero" if bool(none.any()) else None


def powered(base: torch.Tensor, exponent: torch.Tensor) -> str | None:
    if bool(((base < 0) & (exponent != exponent.round())).any()):
        return "a fractional power of a negative number"
    return "a division by zero" if bool(((base == 0) & (exponent < 0)).any()) else None


def opposed(a: torch.Tensor, b: torch.Tensor) -> str | None:
    return "inf - inf" if bool((a.isinf() & b.isinf()).any()) else None


def vanished(a: torch.Tensor, b: torch.Tensor) -> str | None:
    some = ((a == 0) & b.isinf()) | (a.isinf() & (b == 0))
    return "0 * inf" if bool(some.any()) else None


def outside(function: str, low: float, high: float, what: str, pole: str = "") -> Callable[..., str | None]:
    """Of a function that is defined between two numbers, and infinite at them."""

    def tell(x: torch.Tensor, *_: Any) -> str | None:
        if bool(((x < low) | (x > high)).any()):
            return f"{function} of {what}"
        return pole or f"{function} of {low:g}" if bool(((x == low) | (x == high)).any()) else None

    return tell


INF, NEGATIVE = float("inf"), "a negative number"
TELL: dict[str, Callable[..., str | None]] = {
    **dict.fromkeys(("div", "true_divide", "floor_divide", "remainder", "fmod"), divided),
    "reciprocal": lambda x, *_: "a division by zero" if bool((x == 0).any()) else None,
    "pow": powered,
    **dict.fromkeys(("add", "sub", "rsub"), opposed),
    "mul": vanished,
    **{name: outside("log", 0.0, INF, NEGATIVE) for name in ("log", "log2", "log10")},
    "log1p": outside("log1p", -1.0, INF, "a number below -1"),
    "sqrt": outside("sqrt", 0.0, INF, NEGATIVE),
    "rsqrt": outside("sqrt", 0.0, INF, NEGATIVE, "a division by zero"),
    "logit": outside("logit", 0.0, 1.0, "a number outside of 0 to 1", "logit of 0 or 1"),
    **{
        name: outside(name, -1.0, 1.0, "a number outside of -1 to 1", f"{name} of -1 or 1") for name in ("asin", "acos")
    },
    "atanh": outside("atanh", -1.0, 1.0, "a number outside of -1 to 1", "atanh of -1 or 1"),
    "erfinv": outside("erfinv", -1.0, 1.0, "a number outside of -1 to 1", "erfinv of -1 or 1"),
    "acosh": outside("acosh", 1.0, INF, "a number below 1"),
}
MEANS = ("mean", "var", "std", "var_mean", "std_mean", "nll_loss_forward", "nll_loss2d_forward")
"""Operations that divide by a number of elements, which may be 0."""
