"""A training loop followed through: what happens in which order, in each case that its conditions allow."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from gradlab.audit.knowledge.losses import sync_atom
from gradlab.audit.trace.conditions import WINDOW, Atom, atoms
from gradlab.audit.trace.events import Event, If, Jump, Loop, events, walk
from gradlab.audit.trace.replay import Step, cases, flipped, follow, pruned
from gradlab.audit.trace.values import Value

LONGEST = 16
"""A window whose length is said and is greater is followed as one of WINDOW."""
GUARD = re.compile(r"skip|check_grad|valid|healthy|pre_step|_ok\b|device|cuda", re.I)
"""Names of what says that a batch is not good enough for a step, or where it is."""
ACTIONS = ("backward", "step", "zero", "clip", "unscale", "update", "schedule", "scale")


@dataclass(eq=False)
class Unit:
    """A training loop, or a function that is called once a batch (`loop` is None)."""

    body: list
    loop: Loop | None
    path: str
    birth: int
    outer: list[Loop] = field(default_factory=list)
    before: list[Event] = field(default_factory=list)
    after: list[Event] = field(default_factory=list)
    boundary: dict[Atom, bool] = field(default_factory=dict)
    period: str = ""
    doubts: list[Event] = field(default_factory=list)  # calls for which a rule was silent
    inner: bool = False  # the window is a loop of its own inside this one
    alone: bool = False  # called once a batch by what does nothing else to gradients
    compensated: bool = False  # the length of the window is in the learning rate or the weight decay

    def __post_init__(self) -> None:
        self.body = pruned(self.body)
        self.events = events(self.body)
        self.atoms = self.found_atoms()
        self.watching = self.watched_atoms()
        self.window_loops = [item for item in walk(self.body) if isinstance(item, Loop) and self.fills(item)]
        self.inner = bool(self.window_loops)
        self.in_window = {id(event): item for item in self.window_loops for event in events(item.body)}
        self.find_boundary()

    @property
    def window(self) -> int:
        if not self.boundary:
            return 1
        return int(self.period) if self.period.isdigit() and 1 < int(self.period) <= LONGEST else WINDOW

    def fills(self, loop: Loop) -> bool:
        """Whether the gradients of a loop inside this one reach a step: none is set to zero in between."""
        inside = {id(e): e.kind for e in events(loop.body)}
        kinds = set(inside.values())
        if loop.once or "backward" not in kinds or "step" in kinds or all(e.kind != "step" for e in self.events):
            return False
        for values in cases(self.atoms, 4):
            pending = False
            out: list[Step] = []
            follow(self.body, flipped(values, None, False), 0, 0, frozenset(), out)
            for step in out:
                if step.kind == "backward" and id(step.event) in inside:
                    pending = True
                elif step.kind == "zero" and id(step.event) not in inside:
                    pending = False
                elif step.kind == "step" and pending:
                    return True
        return False

    def optimizers(self) -> list[Value]:
        found: list[Value] = []
        for event in self.events:
            if event.kind == "step" and event.value is not None and all(same(event.value, o) is False for o in found):
                found.append(event.value)
        return found

    def found_atoms(self) -> list[Atom]:
        found: dict[Atom, None] = {}
        for item in walk(self.body):
            formulas = []
            if isinstance(item, If) and any(
                isinstance(part, Jump) or (isinstance(part, Event) and part.kind in ACTIONS)
                for part in walk([*item.then, *item.other])
            ):
                formulas.append(item.test)
            elif isinstance(item, Event):
                formulas += [region.when for region in item.regions]
                for region in item.regions:
                    if region.kind == "accumulate" and region.data.get("of") is not None:
                        found[sync_atom(region.data["of"])] = None
            for formula in formulas:
                found.update(dict.fromkeys(atoms(formula)))
        return list(found)

    def watched_atoms(self) -> set[Atom]:
        """Those that decide whether a loss is kept, and nothing else."""
        tests = [item.test for item in walk(self.body) if isinstance(item, If) and any(
            e.kind == "keep" for e in events([*item.then, *item.other]))]  # fmt: skip
        return {atom for test in tests for atom in atoms(test)} - set(self.atoms)

    def telling(self, atom: Atom) -> bool:
        """Whether a flag may say that a window ends: not one that says what was handed over, or that a batch is bad."""
        return atom.birth > self.birth and not atom.key.endswith("is not None") and not GUARD.search(atom.key)

    def find_boundary(self) -> None:
        """Atoms that decide whether an iteration with a backward pass ends in a step."""
        inner = {
            atom
            for loop in walk(self.body) if isinstance(loop, Loop)
            for item in walk(loop.body) if isinstance(item, If)
            for atom in atoms(item.test) if atom.birth > loop.birth
        }  # fmt: skip
        whole_run = self.loop is None and any(isinstance(item, Loop) and trained(item) for item in walk(self.body))
        flags = () if whole_run else ("flag",)  # a function with loops of its own is not called once a micro-batch
        candidates = [
            a for a in self.atoms
            if a not in inner and not a.once
            and (a.kind in ("period", "sync") or (a.kind in flags and self.telling(a)))
        ]  # fmt: skip
        whole, self.body = self.body, pruned(self.body, ("backward", "step"))
        relevant = set(self.found_atoms())
        candidates = [a for a in candidates if a in relevant]
        others = [a for a in self.atoms if a in relevant and a not in candidates]
        for atom in candidates:
            for values in cases([a for a in candidates if a is not atom] + others, 6):
                seen = {}
                for value in (True, False):
                    found, status = self.iteration(0, flipped(values, atom, value))
                    kinds = {step.kind for step in found}
                    seen[value] = (("backward" in kinds), ("step" in kinds), status)
                if seen[True][0] and seen[False][0] and seen[True][1] != seen[False][1]:
                    ended = seen[not seen[True][1]][2]
                    if ended in ("raise", "break"):
                        continue
                    self.boundary[atom] = seen[True][1]
                    if atom.kind == "period" and (not self.period or atom.period.isdigit() is False):
                        self.period = atom.period
                    break
        self.body = whole

    def varying(self, step: Step) -> set[tuple[str, bool]]:
        """What must hold for a step and may be otherwise in the next turn of the loop."""
        made = {a.key for a in self.atoms if a.birth > self.birth}
        return {guard for guard in step.guards if any(key in made for key in guard[0].split(" | "))}

    def iteration(self, k: int, truth: Callable[[Atom], bool]) -> tuple[list[Step], str]:
        out: list[Step] = []
        status = follow(self.body, truth, k, 0, frozenset(), out)
        return out, status

    def timed(self, atom: Atom) -> bool:
        return atom.kind in ("last",) or (atom.kind == "period" and bool(self.period) and atom.period == self.period)

    def truth(self, values: dict[str, bool], k: int) -> Callable[[Atom], bool]:
        ends = k % self.window == self.window - 1
        phase = next((a for a in self.boundary if a.kind == "period" and a.at is not None), None)
        if phase is not None and phase.at is not None:
            ends = phase.at(k) == self.boundary[phase]

        def at(atom: Atom) -> bool:
            if atom.kind == "period" and atom.at is not None and (atom.period == self.period or atom in self.boundary):
                return atom.at(k)
            if atom in self.boundary:
                return ends == self.boundary[atom]
            if atom in self.watching:  # now the one branch, now the other
                return k % 2 == 0
            return False if atom.kind == "last" else values.get(atom.key, False)

        return at


def same(one: Value, two: Value) -> bool | None:
    """Whether two optimizers are one; None where that cannot be known."""
    if one is two or (one.name and one.name == two.name and one.data.get("call") is two.data.get("call")):
        return True
    if one.data.get("held_by") is two or two.data.get("held_by") is one:
        return True
    return any(a is b for _, a in one.data.get("choice", []) for _, b in two.data.get("choice", [(None, two)]))


def trained(loop: Loop) -> bool:
    """Whether a loop updates by itself."""
    return not loop.once and {"backward", "step"} <= {event.kind for event in events(loop.body)}
