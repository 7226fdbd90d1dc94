"""What an expression of the audited program stands for, as far as its text shows, and what happens to gradients.

Values, events, regions and scopes refer to each other, so they are defined together.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

from gradlab.audit.source.project import Function, Module, methods_of
from gradlab.audit.trace.conditions import FALSE, TRUE, Formula

births = itertools.count(1)
"""A value born after a loop was entered may differ from one iteration to the next."""
UNSET: Any = None
"""Default of facts that every value of some kinds has, and no other value."""
NO_ROOTS: frozenset[int] = frozenset()
CALLABLE = {"function", "method", "lambda", "bound", "partial"}
"""Kinds of values that can be called and followed."""
MAKERS = (*sorted(CALLABLE), "class", "external")
"""Kinds of what makes something when it is called, here or in an installed package."""


Cut = tuple["Value", ast.AST, str]
"""A network or a layer, where the graph that goes through it was cut, and the file of that."""


Graph = tuple[frozenset["Value"], frozenset[Cut]]
"""Layers that a graph goes through, and those that it is cut off from."""


@dataclass(frozen=True)
class Factor:
    """What a tensor was divided by (`sign` is "/") or multiplied with ("*"), wherever that was."""

    sign: str
    text: str
    value: Value
    node: ast.expr = field(compare=False)
    path: str = field(compare=False)
    each: bool = field(default=False, compare=False)  # each element, before they are added up


@dataclass(eq=False)
class Value:
    """`kind` is a word: optimizer, scaler, scheduler, model, ddp, params, tensor, index, number, list, unknown, ...

    Everything after `birth` is a fact whose default means that nothing is known. A value keeps its facts when it turns
    out to be of another kind: the unknown result of a call is a tensor where `.backward()` is called on it.
    """

    kind: str = "unknown"
    name: str = ""
    _: KW_ONLY
    birth: int = -1
    # any value
    of: Value | None = None  # the model that a wrapper, parameters or an optimizer belong to
    choice: tuple[tuple[Formula, Value], ...] = ()  # it is one of these, each under its condition
    made: bool = False  # the result of a call
    given: bool = False  # from outside of the text: it may be None
    opaque: bool = False  # made by what could not be followed
    annotated: bool = False  # of the class that an annotation names
    framework: bool = False  # of a class whose bases are not all in the project
    foreign: bool = False  # the result of a call of an installed package
    never_none: bool = False
    blind: bool = False  # made by a call that cannot know the length of a window
    acting: bool | None = None  # whether the call that made it received something of the training
    inside: tuple[Region, ...] = ()  # the regions that it was made in
    within: Value | None = None  # the model that it is a part of
    shared: bool = False  # a part of several models, or given to what may call it or change it
    built: bool = False  # an object of a class of the project's, made by a call in the text
    alone: bool = False  # made by a call of a class that is not seen, which received nothing of the training
    call: ast.Call = UNSET  # that made it, where what is called is known
    maker: str = ""  # the dotted name of what is called
    made_by: str = ""  # of what a function or class that is not seen made: its last name
    entry: ast.AST = UNSET  # the call of the function that `call` is in
    path: str = ""  # of the file of `call`
    through: Value | None = None  # the accelerator or Fabric that made it
    checks_finite: bool = False  # the answer of a function that looks for NaN or Inf
    formula: Formula = UNSET  # of a bool
    # numbers, indices and iterables
    value: Any = None  # of a number: any constant
    is_length: bool = False  # the result of len()
    counted: Value | None = None  # the object whose elements it is the number of
    of_processes: bool = False  # the number of processes, or 1 where there is no group of them
    summed: bool = False  # of such a number: the sum of a mask, which differs from batch to batch
    positive: bool = False  # of such a number: it is kept away from 0
    before: int | None = None  # its birth before the loop that assigns it anew
    offset: int = 0  # of an index: its value in the first iteration
    of_loop: bool = False  # of an index: the loop itself counts it
    stop: str | None = None  # of an index over range(stop); "" where that is not known
    stride: str = ""  # of an index over range(0, stop, stride)
    start: int = 0  # of enumerate(): its first number
    inner: Value = UNSET  # of enumerate(): what is enumerated
    items: list[Value] = field(default_factory=list)  # of a list, a dictionary, zip()
    marks: frozenset[int] = NO_ROOTS  # of a list: of the tensors that were appended, see Event.mark, and tokens
    appended: Value | None = None  # of a list: the first tensor that was appended, or tuple with one; or data
    # classes, their objects, and what can be called
    node: Any = UNSET  # the definition of a function, a class or a lambda
    module: Module = UNSET  # of the definition
    scope: Scope = UNSET  # of the definition, or of an ExitStack
    owner: Value = UNSET  # of a method or super(): its object
    callee: Value = UNSET  # of functools.partial
    args: tuple[Value, ...] = ()  # of functools.partial; what the call received: of what is made alone, of networks
    keywords: Mapping[str, Value] = UNSET  # of functools.partial; of an accelerator, those that it was made with
    making: Frame | None = None  # of an object of the project's: the call that made it
    lineage: tuple[ast.ClassDef, ...] = ()  # of an object of the project's: its class, then its bases
    modules: tuple[Module, ...] = ()  # of each class of the lineage
    lightning: bool = False  # an object of a Lightning class
    loss_method: str = ""  # the method of an object whose result a framework calls backward() on
    received_training: bool = False  # an object that received something of the training
    # optimizers, schedules, scalers, models, parameters, gradients
    trained: tuple[Value, ...] = ()  # the models that an optimizer updates
    made_when: Formula = TRUE  # under which condition an optimizer is made
    held_by: Value | None = None  # the optimizer that has this one as an attribute
    prepared: Value | None = None  # the accelerator or Fabric that prepared it
    optimizer: Value | None = None  # of a schedule
    lengths: tuple[str, ...] = ()  # of a schedule: expressions of its length, its warm-up's first
    named_lengths: tuple[str, ...] = ()  # the same with names replaced by their values
    rewound: bool = False  # of a schedule: the program set its count
    among: tuple[Value, ...] = ()  # the schedules that it may be
    enabled: Formula = TRUE  # of a scaler
    fp16: bool = False  # of an accelerator: it scales losses itself
    steps: Value | None = None  # of an accelerator, its plugin or an engine: micro-batches of a window
    wrapped: bool = False  # of a model: DistributedDataParallel wraps it
    sharded: bool = False  # of a model: FullyShardedDataParallel does
    raw: Value | None = None  # of a model: the wrapper that it was taken out of
    half: ast.AST | None = None  # of a model: where it was cast to fp16
    half_path: str = ""  # of the file of `half`
    half_when: Formula = FALSE  # under which condition it is, and no later cast takes it back
    frozen: int = 0  # of a model: when its weights were frozen, under no condition, as a birth
    thawed: bool = False  # of a model: they may have been unfrozen, or some replaced
    last: str = ""  # of nn.Sequential: its last layer
    some: bool = False  # of parameters: not all of the model's; of an optimizer: it may have others than those known
    named: bool = False  # of parameters: with their names
    branches: int = -1  # of a generator of parameters: how many `if` are around where it is made
    spent: bool = False  # of a generator of parameters: something has gone through it
    guess: bool = False  # of a gradient: it may be that of an input
    # context managers
    word: str = ""  # no_sync, accumulate, no_grad, scale_loss, followed, unknown
    when: Formula = TRUE  # where it has an effect
    model: Value | None = None
    entered: Value | None = None  # what `with ... as` binds, if not itself
    regions: tuple[Region, ...] = ()  # of a generator of the project's: the regions around its yield
    after: tuple[Any, ...] = ()  # and the event tree behind its yield; of an ExitStack: behind those of all in it
    region: Region | None = None  # of an ExitStack: its own block
    dtype: str = ""  # of autocast
    device: object = ""  # of autocast
    # tensors
    roots: frozenset[int] = NO_ROOTS  # marks of the operations that it comes from
    source: str = ""  # what made it: model, criterion
    forward: Event | None = None  # the forward pass that it comes from
    chain: tuple[Event, ...] = ()  # all forward passes that it comes from
    origins: tuple[Event, ...] = ()  # the forward passes that its graph comes from, as far as they are known
    pieces: frozenset[int] = NO_ROOTS  # the parts of their results that it comes from
    traced: bool = False  # and it comes from nothing else
    cut: ast.AST | None = None  # where it, or something that it comes from, lost its graph
    cut_path: str = ""  # of the file of `cut`
    layers: frozenset[Value] = frozenset()  # the networks, and their layers that are seen, that its graph goes through
    lost: frozenset[Cut] = frozenset()  # those that it comes from by a cut graph, with the cut and its file
    graphs: Mapping[object, Graph] = UNSET  # of a network's result: the same of each part, by its number or key
    noise: bool = False  # random numbers, or what a network says times these
    constants: tuple[Value, ...] = ()  # of a loss: the terms that have no graph
    numbers: tuple[Value, ...] = ()  # the tensors of which item(), `cut`, is a term of it
    own_weight: bool = False  # made here with a gradient of its own: a part of no network
    leaf: ast.AST | None = None  # where it was given a gradient of its own, which goes no further
    made_of: tuple[Value, ...] = ()  # the tensors that it was computed from by arithmetic
    parts: tuple[Value, ...] = ()  # the terms of a sum
    term: tuple[ast.AST, str] | None = None  # of such a term: where it was made, or added, and the file of that
    factors: tuple[Factor, ...] = ()
    selected: Factor | None = None  # of the samples for which a mask holds: by what their mean divides
    reduction: object = "mean"  # mean, sum, none, unknown
    reduced: bool = (
        False  # its samples, or the terms of a loss, are reduced: later sums and means are over other things
    )
    target: int | None = None  # of a loss: the birth of what it is compared with
    ignoring: bool = False  # of a loss: a mean over the targets that are not ignored
    scaled: Value | None = None  # the scaler that scaled it
    apex: bool = False  # Apex scaled it; of an optimizer: Apex expects scaled losses
    scalar: bool = False  # reduced to one number
    perhaps_divided: bool = False  # its alternatives were divided by different things
    unsure: bool = False  # it may be a number
    guessed: bool = False  # taken for a loss only because a call received a tensor
    derivative: bool = False  # of torch.autograd.grad
    range: str = ""  # a word of knowledge.value_ranges
    outputs: tuple[tuple[str, frozenset[int], object], ...] = ()  # of a network: each part's range, roots, reduction
    entries: Mapping[str, tuple[str, frozenset[int]]] = UNSET  # the same of a dictionary, by key
    linear: bool = False  # a model's output, shifted or times something
    compared: Value | None = None  # the output whose difference from data it is
    exp_event: Event | None = None  # the event of an exp() that may overflow
    exp_node: ast.AST | None = None  # the exp() that it comes from
    exp_of: str = ""  # the range of what exp() was applied to

    def __post_init__(self) -> None:
        self.number = next(births)
        if self.birth < 0:
            self.birth = self.number
        self.attributes: dict[str, Value] = {}

    def derived(self, kind: str, name: str = "", **facts: Any) -> Value:
        """A new value with this one's facts, but for those that are given."""
        assert facts.keys() <= self.__dict__.keys()
        made = Value.__new__(Value)
        number = next(births)
        own = {"number": number, "birth": number, "attributes": {}, "traced": False, "leaf": None}
        made.__dict__ = {**self.__dict__, **own, **facts}
        made.kind, made.name = kind, name
        return made

    def update(self, **facts: Any) -> None:
        """Learn facts."""
        assert facts.keys() <= self.__dict__.keys()
        self.__dict__.update(facts)

    def become_tensor(self) -> None:
        """An unknown value on which `.backward()` is called is a loss of what a call that is not seen received."""
        passes = tuple(e for e in self.chain if all(region.kind != "no_grad" for region in e.regions))
        facts = {"roots": frozenset([next(births)]), "origins": self.origins or passes}
        self.update(kind="tensor", opaque=True, **facts)

    def taken_backward(self) -> None:
        """An unknown value that is scaled, or given to what calls its backward(), is a loss of unknown origin."""
        if self.kind == "unknown" and self.leaf is None and not self.framework and not self.choice:
            self.become_tensor()

    @property
    def cls(self) -> ast.ClassDef | None:
        """The class of an object of the project's."""
        return self.lineage[0] if self.lineage else None

    @property
    def blank(self) -> bool:
        """Whether nothing is known of it."""
        known = self.name or self.made or self.given or self.framework or self.opaque or self.choice or self.prepared
        return self.kind == "unknown" and not known

    def root(self) -> Value:
        """The model that a wrapper or its parameters come from, or the value itself."""
        value, depth = self, 0
        while (inner := value.of) is not None and depth < 10:
            value, depth = inner, depth + 1
        return value

    def method(self, name: str, above: ast.AST | None = None) -> tuple[Function, Module] | None:
        """The method of an object's class or bases; with `above` only of bases of the class that defines it."""
        lineage, modules = self.lineage, self.modules
        if above is not None:
            at = next((i for i, node in enumerate(lineage) if above in node.body), len(lineage))
            lineage, modules = lineage[at + 1 :], modules[at + 1 :]
        for node, module in zip(lineage, modules):
            if (found := methods_of(node).get(name)) is not None:
                return found, module
        return None


class Scope:
    """Names and what they are bound to."""

    def __init__(self, parent: Scope | None, node: ast.AST, module: Module):
        self.parent, self.node, self.module = parent, node, module
        self.names: dict[str, Value] = {}
        self.elsewhere: dict[str, Scope] = {}  # of names that `global` or `nonlocal` declares

    def home(self, name: str) -> Scope:
        """Where an assignment binds a name."""
        return self.elsewhere.get(name, self)

    def find(self, name: str) -> Value | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None


class Frame(NamedTuple):
    """A call that was entered; own: of the same object as its caller, or of none."""

    call: ast.AST
    module: Module
    args: list[Value]
    own: bool


@dataclass(eq=False)
class Region:
    """A `with` block: autocast, no_sync, accumulate, scale_loss, no_grad. `when`: the iterations in which it is active.

    value: what it is about (a model); context: the context manager.
    """

    kind: str
    when: Formula
    node: ast.AST
    value: Value | None = None
    context: Value | None = None

    @property
    def accelerator(self) -> Value | None:
        """Accelerate's accelerator whose block it is."""
        return self.context.of if self.context is not None and self.context.kind == "context" else None


@dataclass(eq=False)
class Event:
    """Something that happens to gradients.

    kind: backward; step, zero (of an optimizer), clip; unscale, update, scale (of gradients); schedule; forward,
    passed (a call that computes a loss with a network); reduce (over ranks), average (a loss, over ranks), sync
    (DDP's own flag); given (gradients are assigned), taken (copied elsewhere), look (only read); keep (a tensor is
    retained with its graph); unstable (an operation may become non-finite); opaque (a call that could not be
    followed); mode (a network is put into train() or eval()); freeze (weights may need no gradient from now
    on); yield (of a generator).
    """

    kind: str
    node: ast.AST
    path: str
    value: Value | None = None
    regions: tuple[Region, ...] = ()
    frames: tuple[Frame, ...] = ()  # the calls that it happens in
    _: KW_ONLY
    through: Value | None = None  # backward, clip: the accelerator, Fabric, engine or Lightning module that does it
    scaler: Value | None = None  # step, unscale: the scaler that does it
    perhaps: bool = False  # backward: the loss may have been divided
    call: ast.Call | None = None  # clip
    by_value: bool = False  # clip
    bound: Value | None = None  # clip: the norm that it allows
    empty: bool = False  # clip: of a generator of parameters that something has gone through
    by_hand: bool = False  # zero: without zero_grad()
    owner: Value | None = None  # zero: what it is called on, where it is not known whose gradients it zeroes
    closure: tuple[Event, ...] = ()  # step: what happens in its closure
    elsewhere: bool = False  # step: another method of the class updates the scaler
    in_place: str = ""  # scale: div_, mul_
    arguments: int = 0  # schedule: how many its step() has
    module: Module | None = None  # of its text, where that is followed
    wrapped: bool = False  # forward: the model is wrapped by then
    casts: bool = False  # forward: the file uses autocast
    parts: set[int] = field(default_factory=set)  # forward: of its result that are used by themselves
    name: str = ""  # opaque: of what is called; mode: train, eval
    receives: frozenset[str] = frozenset()  # opaque: the kinds of what it receives
    used: bool = False  # opaque: its result is used
    into: str = ""  # keep: the name of the sum or list
    since: int = 0  # keep: birth of the sum or list
    mark: int = 0  # keep: a root of the sum from now on
    classes: tuple[ast.ClassDef, ...] = ()  # keep: the lineage of the object whose method it is in
    what: str = ""  # unstable: log, exp, sqrt, rmse, division
    token: int = 0  # unstable: a root of what is computed
