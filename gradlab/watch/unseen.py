"""Steps that call no hooks: those of an optimizer that is compiled."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gradlab.watch.follower import Follower
from gradlab.watch.loop import Loop
from gradlab.watch.stepping import attempted, measured

LOOKED_AT = 2
"""Parameters whose state tells."""


def state(f: Follower) -> list[int] | None:
    """Changes with every step of an optimizer that remembers anything; not looked at while its hooks are called."""
    if f.hooked:
        return None
    known = f.optimizer.state
    kept = [v for p in f.sample[-LOOKED_AT:] if p in known for v in known[p].values()]
    return [len(kept), *(v._version for v in kept if isinstance(v, Tensor)), *(v for v in kept if type(v) is int)]


def catch_up(loop: Loop, f: Follower) -> None:
    """Before anything else happens: did the weights move, and what their optimizer remembers?"""
    new: list[Any] = f.new
    if f.stepping or f.trying or not new or loop.scale.on or all(f.unmoved(b) for b in new):
        return
    if f.hooked:  # somebody has moved the weights: from the next update on it is looked whether that was a step
        f.hooked = False
    if f.state is None or state(f) == f.state:
        return
    f.unhooked += 1
    f.look()
    loop.outputs[f.index].numbers.finish(loop.scale.now())
    measured(loop, f, new[-1].site, None, moves=False)
    attempted(loop, f, False)
