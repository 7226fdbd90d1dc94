"""A training loop: which of its iterations end a window, and what happens in an iteration in each case."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gradlab.audit.trace.conditions import FALSE, TRUE, WINDOW, Atom, atoms, literals, negation, sync_atom
from gradlab.audit.trace.event_tree import Block, If, Jump, Loop, Node, events, walk
from gradlab.audit.trace.replay import Occurrence, cases, flipped, follow, pruned
from gradlab.audit.trace.values import Event, Value

LONGEST = 16
"""A window of known length that is longer is replayed as one of WINDOW micro-batches."""
MOST = 100
"""A loop with more conditions is not judged: the time grows with their square."""
GUARD = re.compile(r"skip|check_grad|valid|healthy|pre_step|_ok\b|device(?!s)|cuda", re.I)
"""Names of flags for whether a batch is good enough for a step, or where it is."""
ACTIONS = ("backward", "step", "zero", "clip", "unscale", "update", "schedule", "scale", "reduce")


@dataclass(eq=False)
class TrainingLoop:
    """A training loop, or a function that is called once a batch (`statement` is None)."""

    body: list[Node]
    statement: Loop | None
    path: str
    birth: int
    outer: list[Loop] = field(default_factory=list)
    before: list[Event] = field(default_factory=list)
    after: list[Event] = field(default_factory=list)
    boundary: dict[Atom, bool] = field(default_factory=dict)  # atoms that end a window, with the truth that ends it
    period: str = ""  # the expression of the window's length
    unresolved: list[Event] = field(default_factory=list)  # calls for which a rule is silent
    self_contained: bool = False  # called once a batch by what does nothing else to gradients
    happening: set[int] = field(default_factory=set)  # ids of the events that happen in any scenario
    compensated: bool = False  # the learning rate or the weight decay makes up for the length of the window

    def __post_init__(self) -> None:
        self.body = pruned(self.body)
        self.events = events(self.body)
        self.atoms = self.deciding_atoms()
        self.too_large = len(self.atoms) > MOST
        if self.too_large:
            self.body, self.atoms = [], []
        self.alternating = self.keeping_atoms()
        self.computing = self.computing_keys()
        self.window_loops = [item for item in walk(self.body) if isinstance(item, Loop) and self.fills_window(item)]
        self.in_window = {id(event): item for item in self.window_loops for event in events(item.body)}
        self.find_boundary()

    @property
    def nested(self) -> bool:
        """Whether the window is a loop of its own inside this one."""
        return bool(self.window_loops)

    @property
    def window(self) -> int:
        """How many micro-batches a window is replayed with."""
        if not self.boundary:
            return 1
        return int(self.period) if self.period.isdigit() and 1 < int(self.period) <= LONGEST else WINDOW

    def fills_window(self, loop: Loop) -> bool:
        """Whether the gradients of a loop inside this one reach a step: they are not set to zero in between."""
        inside = {id(e): e.kind for e in events(loop.body)}
        kinds = set(inside.values())
        if loop.once or "backward" not in kinds or "step" in kinds or all(e.kind != "step" for e in self.events):
            return False
        for values in cases(self.atoms, 4):
            pending = False
            out: list[Occurrence] = []
            follow(self.body, flipped(values, None, False), 0, 0, frozenset(), out)
            for step in out:
                if step.kind == "backward" and id(step.event) in inside:
                    pending = True
                elif step.kind == "zero" and id(step.event) not in inside:
                    pending = False
                elif step.kind == "step" and pending:
                    return True
        return False

    @cached_property
    def rejecting(self) -> set[int]:
        """Ids of the events of branches that pass over a batch: they leave the iteration before any backward pass."""
        found: set[int] = set()
        for item in walk(self.body):
            if isinstance(item, If) and not any(self.counts(atom) for atom in atoms(item.test)):
                for side in (item.then, item.other):
                    inside = events(side)
                    leaves = bool(side) and isinstance(side[-1], Jump) and side[-1].kind in ("continue", "return")
                    if leaves and not {"backward", "step"} & {e.kind for e in inside}:
                        found |= {id(e) for e in inside}
        return found

    @cached_property
    def of_each_parameter(self) -> set[str]:
        """Keys of the conditions that differ from parameter to parameter: `if p.requires_grad`."""
        inner = [item for item in walk(self.body) if isinstance(item, Loop) and item.once]
        tests = [(item.test, one.birth) for one in inner for item in walk(one.body) if isinstance(item, If)]
        return {atom.key for test, birth in tests for atom in atoms(test) if atom.birth > birth}

    @cached_property
    def impossible(self) -> set[int]:
        """Ids of the events in branches whose tests are constants."""
        tests = [item for item in walk(self.body) if isinstance(item, If) and item.test in (TRUE, FALSE)]
        return {id(e) for item in tests for e in events(item.other if item.test == TRUE else item.then)}

    @cached_property
    def skipping(self) -> set[Atom]:
        """Atoms taken for an end of the epoch that pass over batches: `if epoch * len(data) + i < start: continue`."""

        def reached(atom: Atom, value: bool) -> bool:
            return any(step.kind == "backward" for step in self.iteration(0, flipped({}, atom, value))[0])

        return {a for a in self.atoms if a.kind == "last" and reached(a, True) and not reached(a, False)}

    def counts(self, atom: Atom) -> bool:
        """Whether an atom may say where in a window, or in an epoch, an iteration is."""
        return atom in self.boundary or atom.kind in ("period", "last", "sync") or "index+" in atom.key

    def optimizers(self) -> list[Value]:
        return self.stepped

    def of_networks(self) -> list[Value]:
        """The optimizers without those of single weights that belong to no network."""
        return [optimizer for optimizer in self.stepped if not optimizer.own_weight]

    @cached_property
    def stepped(self) -> list[Value]:
        """The optimizers that take a step in this loop."""
        found: list[Value] = []
        for event in self.events:
            if event.kind == "step" and event.value is not None and not any(same(event.value, o) for o in found):
                found.append(event.value)
        return found

    def deciding_atoms(self) -> list[Atom]:
        """Atoms of which something that happens to gradients depends."""
        found: dict[Atom, None] = {}
        for item in walk(self.body):
            formulas = []
            if isinstance(item, If) and acts(item):
                formulas.append(item.test)
            elif isinstance(item, Event):
                formulas += [region.when for region in item.regions]
                for region in item.regions:
                    if region.kind == "accumulate" and region.accelerator is not None:
                        found[sync_atom(region.accelerator.number)] = None
            for formula in formulas:
                found.update(dict.fromkeys(atoms(formula)))
        return list(found)

    def keeping_atoms(self) -> set[Atom]:
        """Atoms that decide whether a loss is kept, and nothing else."""
        tests = [
            item.test
            for item in walk(self.body)
            if isinstance(item, If) and any(e.kind == "keep" for e in events([*item.then, *item.other]))
        ]
        return {atom for test in tests for atom in atoms(test)} - set(self.atoms)

    def computing_keys(self) -> set[str]:
        """Keys of the conditions that only decide whether there is a forward pass, each true where there is one."""
        found: set[str] = set()
        for item in walk(self.body):
            if isinstance(item, If) and not acts(item):
                sides = [
                    any(e.kind == "forward" and differentiable(e) for e in events(s)) for s in (item.then, item.other)
                ]
                if sides[0] != sides[1]:
                    test = item.test if sides[0] else negation(item.test)
                    found |= {key for key, positive in literals(test) if positive}
        return found

    def open_atoms(self) -> list[Atom]:
        """Atoms that nothing decides: each may be true or false, for all of a run."""
        return [a for a in self.atoms if a not in self.boundary and not self.timed(a)]

    def may_end_window(self, atom: Atom) -> bool:
        """Whether a flag may mark the end of a window; not one for an optional argument, or for a bad batch."""
        return atom.birth > self.birth and not atom.key.endswith("is not None") and not GUARD.search(atom.key)

    def find_boundary(self) -> None:
        """Find the atoms that decide whether an iteration with a backward pass also has a step."""
        whole, self.body = self.body, pruned(self.body, ("backward", "step"))
        relevant, gates = set(self.deciding_atoms()), self.gates()
        candidates = [atom for atom in self.boundary_candidates(whole) if atom in relevant and atom in gates]
        others = [a for a in self.atoms if a in relevant and a not in candidates]
        for atom in candidates:
            for values in cases([a for a in candidates if a is not atom] + others, 6):
                ends = self.ending_truth(atom, values)
                if ends is not None and not (atom.kind == "flag" and self.discards(whole, atom, ends, values)):
                    self.boundary[atom] = ends
                    if atom.kind == "period" and (not self.period or not atom.period.isdigit()):
                        self.period = atom.period
                    break
        self.body = whole

    def gates(self) -> set[Atom]:
        """Atoms that may decide whether there is a step: none where one is taken whatever holds."""
        if not any(isinstance(item, Jump) for item in walk(self.body)) and unconditional_step(self.body):
            return set()
        found: set[Atom] = set()
        for item in walk(self.body):
            if isinstance(item, If):
                inside = list(walk([*item.then, *item.other]))
                if any(isinstance(part, Jump) or (isinstance(part, Event) and part.kind == "step") for part in inside):
                    found |= set(atoms(item.test))
            elif isinstance(item, Event):
                found |= {atom for region in item.regions for atom in atoms(region.when)}
        return found | {atom for atom in self.atoms if atom.kind == "sync"}

    def boundary_candidates(self, body: list[Node]) -> list[Atom]:
        inner = {
            atom
            for loop in walk(body)
            if isinstance(loop, Loop)
            for item in walk(loop.body)
            if isinstance(item, If)
            for atom in atoms(item.test)
            if atom.birth > loop.birth
        }
        whole_run = self.statement is None and any(isinstance(item, Loop) and trained(item) for item in walk(body))
        flags = () if whole_run else ("flag",)  # a function with loops of its own is not called once a micro-batch
        return [
            a
            for a in self.atoms
            if a not in inner
            and not a.once
            and (a.kind in ("period", "sync") or (a.kind in flags and self.may_end_window(a)))
        ]

    def ending_truth(self, atom: Atom, values: dict[str, bool]) -> bool | None:
        """The truth of an atom with which an iteration steps, where it has a backward pass either way; else None."""
        seen = {}
        for value in (True, False):
            found, status = self.iteration(0, flipped(values, atom, value))
            kinds = {step.kind for step in found}
            seen[value] = ("backward" in kinds, "step" in kinds, status)
        if not (seen[True][0] and seen[False][0] and seen[True][1] != seen[False][1]):
            return None
        ends = seen[True][1]
        return None if seen[not ends][2] in ("raise", "break") else ends

    def discards(self, body: list[Node], atom: Atom, ends: bool, values: dict[str, bool]) -> bool:
        """Whether gradients are zeroed where a flag prevents the step, and only there: it rejects a batch."""
        seen: dict[bool, set[int]] = {}
        for value in (True, False):
            out: list[Occurrence] = []
            follow(body, flipped(values, atom, value), 0, 0, frozenset(), out)
            last = max((i for i, step in enumerate(out) if step.kind == "backward"), default=0)
            seen[value] = {id(step.event) for step in out[last:] if step.kind == "zero"}
        return bool(seen[not ends] - seen[ends])

    def varying(self, step: Occurrence) -> set[tuple[str, bool]]:
        """The conditions of an occurrence that may be otherwise in the next iteration."""
        made = {a.key for a in self.atoms if a.birth > self.birth}
        return {guard for guard in step.guards if any(key in made for key in guard[0].split(" | "))}

    def iteration(self, k: int, truth: Callable[[Atom], bool]) -> tuple[list[Occurrence], str]:
        """What happens in iteration k, and how it ends."""
        out: list[Occurrence] = []
        status = follow(self.body, truth, k, 0, frozenset(), out)
        return out, status

    def timed(self, atom: Atom) -> bool:
        """Whether the number of the iteration decides an atom."""
        if atom.kind == "last":
            return atom not in self.skipping
        return self.paced(atom)

    def paced(self, atom: Atom) -> bool:
        """Whether the length of the window decides an atom, with the number of the iteration."""
        return atom.kind == "period" and bool(self.period) and atom.period == self.period

    def truth(self, values: dict[str, bool], k: int) -> Callable[[Atom], bool]:
        """The truth of every atom in iteration k, flags as given."""

        def otherwise(atom: Atom) -> bool:
            return values.get(atom.key, atom.key in self.computing)

        ends = k % self.window == self.window - 1
        phase = next((a for a in self.boundary if a.kind == "period" and a.at is not None), None)
        if phase is not None and phase.at is not None:
            ends = phase.at(k) == self.boundary[phase]
        if any(values.get(key) is truth for key, truth in single(self.period)):
            compared = "Compare("  # `i % 1 == 0` holds, and `i % 1` does not
            return lambda atom: self.boundary.get(
                atom, atom.key.startswith(compared) if self.paced(atom) else otherwise(atom)
            )

        def at(atom: Atom) -> bool:
            if atom.kind == "period" and atom.at is not None and (atom.period == self.period or atom in self.boundary):
                return bool(atom.at(k))
            if atom in self.boundary:
                return ends == self.boundary[atom]
            if atom in self.alternating:
                return k % 2 == 0
            return otherwise(atom)

        return at


def single(period: str) -> list[tuple[str, bool]]:
    """Conditions on the length of a window, each with the truth that makes every micro-batch an update of its own."""
    return [(f"Compare({period}, Gt, 1)", False), (f"Compare({period}, ==, 1)", True)] if period else []


def unconditional_step(items: Sequence[Node]) -> bool:
    """Whether there is a step under no condition, and in no inner loop and no block that may pass over it."""
    for item in items:
        if isinstance(item, Event) and item.kind == "step" and not item.regions:
            return True
        if isinstance(item, Block) and unconditional_step(item.body):
            return True
    return False


def acts(item: If) -> bool:
    """Whether something that depends on it acts on gradients, or leaves the loop."""
    return any(
        isinstance(part, Jump) or (isinstance(part, Event) and (part.kind in ACTIONS or unsynchronised(part)))
        for part in walk([*item.then, *item.other])
    )


def unsynchronised(event: Event) -> bool:
    """Whether a network is called in no_sync(): there DDP decides whether the backward pass reduces gradients."""
    return event.kind in ("forward", "passed") and any(region.kind == "no_sync" for region in event.regions)


def differentiable(event: Event) -> bool:
    return all(region.kind != "no_grad" for region in event.regions)


def same(one: Value, two: Value) -> bool:
    """Whether two optimizers are, or may be, one."""
    helpers = isinstance(one.entry, ast.Call) and isinstance(two.entry, ast.Call)
    apart = helpers and one.entry is not two.entry  # two calls of one function that makes an optimizer
    apart |= bool(one.trained and two.trained) and not {*one.trained} & {*two.trained}  # of a comprehension
    if one is two or (one.name and one.name == two.name and one.call is two.call and not apart):
        return True
    if one.held_by is two or two.held_by is one:
        return True
    return any(a is b for _, a in one.choice for _, b in two.choice or ((None, two),))


def anonymous(optimizer: Value) -> bool:
    """Whether nothing shows which optimizer it is: each of what a container that is not seen has."""
    return not (optimizer.name or optimizer.call or optimizer.choice or optimizer.trained or optimizer.given)


def trained(loop: Loop) -> bool:
    """Whether a loop updates weights by itself."""
    return not loop.once and updates(events(loop.body))


def updates(found: Sequence[Event]) -> bool:
    return {"backward", "step"} <= {event.kind for event in found}
