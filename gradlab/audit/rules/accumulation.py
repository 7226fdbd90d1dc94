"""Windows of micro-batches: their losses, their gradients, their clips."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.knowledge.framework_methods import single
from gradlab.audit.rules.ownership import concerns, partial_zero
from gradlab.audit.rules.reach import known, overlap
from gradlab.audit.rules.registry import Hit, scenario_rule
from gradlab.audit.rules.reporting import uncertain
from gradlab.audit.source.syntax import walk
from gradlab.audit.trace.event_tree import Loop
from gradlab.audit.trace.provenance import sources
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Factor, Value

WEIGHT = re.compile(r"weight|multiplier|lambda|coeff?(_|#|$)|alpha|beta|gamma", re.I)
"""What a term of a loss is multiplied with, which is no division."""
BATCH_SIZE = re.compile(r"batch_?size", re.I)
SAMPLES = re.compile(r"\.size#\d+\(0\)$|\.shape\[0\]#\d+$|^len\(")
"""How the samples of a batch are counted."""
COUNTED = ("unknown", "list", "tensor", "detached", "bool")
"""Kinds of what the items of one micro-batch are counted in."""
STEPS = "gradient_accumulation_steps"
META_LEARNING = {"innerloop_ctx", "adapt", "functional_call", "update_params"}
"""What makes a learner of its own in each iteration of a loop."""


@scenario_rule("GL301", windows=True)
def loss_not_divided(scenario: Scenario) -> Iterator[Hit]:
    loop = scenario.loop
    if loop.compensated or any(s.kind == "scale" for s in scenario.steps):
        return
    if uncertain(loop, "self", "tensor", scenario=scenario):
        return
    if any(e.kind == "taken" for e in loop.events):
        return  # gradients are stored elsewhere, and perhaps averaged
    for backward in scenario.of("backward"):
        event, window = backward.event, loop.in_window.get(id(backward.event))
        if event.perhaps or not (loop.boundary or counts_micro_batches(window)):
            continue
        if event.through is not None and (backward.inside("accumulate") or event.through.kind == "engine"):
            continue  # Accelerate's own window, which all accelerators share, or an engine's: it divides by the length
        if same_batch(event.value, window) or length_in_batch(window, loop):
            continue
        if alone(scenario, backward) or scenario.unused(backward) or not reaches_step(scenario, backward):
            continue
        if of_others(event.value, loop):
            continue
        since = window.birth if window is not None else loop.birth
        answer = divided(event.value, event.through, since)
        if answer is False or (answer and by_constant(event.value, loop)) or by_batch_size(event.value, window, loop):
            yield Hit(backward)


def by_constant(value: Value | None, loop: TrainingLoop) -> bool:
    """Whether a loss is divided by numbers in the text alone, and another loss of the loop by the window's length."""

    def divisors(of: Value) -> list[Factor]:
        return [f for f in of.factors if divides(f)]

    if value is None or not loop.period or loop.period.isdigit():
        return False
    others = [e.value for e in loop.events if e.kind == "backward" and e.value is not None and e.value is not value]
    constant = all(isinstance(f.node, ast.Constant) for f in divisors(value))
    return constant and any(f.text == loop.period for other in others for f in divisors(other))


def of_others(value: Value | None, loop: TrainingLoop) -> bool:
    """Whether a loss comes from networks that none of the optimizers trains, such as a copy that is attacked."""
    models = tuple(e.value for e in sources(value) if e.value is not None) if value is not None else ()
    trained = tuple(model for optimizer in loop.optimizers() for model in optimizer.trained)
    if not known(models) or any(overlap(one, two) for one in models for two in trained):
        return False
    return known(trained) or all(m.root().birth > o.birth for m in models for o in loop.optimizers())


def reaches_step(scenario: Scenario, backward: Occurrence) -> bool:
    """Whether a step comes whose gradients are not those of a later backward pass alone, after these were zeroed."""
    zeros: list[Occurrence] = []
    anew: list[Occurrence] = []  # zeros with a backward pass behind them
    for step in scenario.after(backward):
        if step.kind == "zero" and not partial_zero(scenario, step) and not ascends(step):
            zeros.append(step)
        elif step.kind == "backward":
            anew += zeros
            zeros = []
        elif step.kind == "step" and not any(concerns(scenario.loop, zero, step.event.value) for zero in anew):
            return True
    return False


def ascends(zero: Occurrence) -> bool:
    """Whether gradients are zeroed by SAM's first step, which has used them."""
    node = zero.event.node
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "first_step"


def divided(value: Value | None, through: Value | None, since: int) -> bool | None:
    """Whether a loss was divided, by anything but the numbers of this micro-batch; None where that cannot be known."""
    if value is None or value.kind != "tensor" or value.perhaps_divided:
        return None
    parts = value.parts or (value,)
    if through is not None and through.kind == "accelerator" and not single(through):
        return None
    if value.parts and any(map(plain, parts)):  # weights of terms are no division of the whole
        return any(divides(f) for f in value.factors if all(f not in term.factors for term in parts))
    means = all(p.reduction == "mean" or averaged(p, since) for p in [*parts, value])
    if not means or any(p.opaque and not p.blind for p in [*parts, value]):
        return None
    if not value.source and not value.blind:
        return None
    factors = [f for f in value.factors if divides(f)]
    masks = [f.value.counted for f in factors if counts_own(f, since)]
    factors = [f for f in factors if not counts_own(f, since) and all(f.value is not mask for mask in masks)]
    if len(parts) > 1:
        factors = [f for f in factors if f.sign == "/" or all(f in p.factors for p in parts)]
    return bool(factors)


def divides(factor: Factor) -> bool:
    """Whether a factor may be a division by a window's length: anything but a weight."""
    return factor.sign == "/" or not WEIGHT.search(factor.text)


def plain(term: Value) -> bool:
    """Whether a term of a sum is the mean of a loss function, divided by nothing."""
    known = term.source == "criterion" and term.reduction == "mean" and not term.opaque and not term.guessed
    return known and not term.choice and not term.perhaps_divided and not any(f.sign == "/" for f in term.factors)


def by_batch_size(value: Value | None, window: Loop | None, loop: TrainingLoop) -> bool:
    """Whether a mean is divided by the number of samples of a batch alone, in windows of another length."""
    length = window.over.stop if window is not None and window.over is not None else loop.period
    if value is None or not length or BATCH_SIZE.search(length) or value.perhaps_divided or value.opaque:
        return False
    texts = [f.text for f in value.factors if f.sign == "/"]
    means = all(p.reduction == "mean" and p.maker.startswith("torch.nn") for p in value.parts or (value,))
    return means and len(texts) == 1 and bool(BATCH_SIZE.search(texts[0]))


def counts_own(factor: Factor, since: int) -> bool:
    """Whether a factor is the number of items in one micro-batch: `mask.sum()`."""
    counted = factor.value.counted
    return factor.sign == "/" and counted is not None and counted.kind in COUNTED and counted.birth > since


def averaged(value: Value, since: int) -> bool:
    """Whether a sum is divided by the number of its own terms, which makes it a mean."""
    return any(counts_own(factor, since) for factor in value.factors)


def counts_micro_batches(loop: Loop | None) -> bool:
    """Whether a loop counts micro-batches, or goes over parts of a batch: over other things a sum may be intended."""
    if loop is None or not isinstance(loop.node, ast.For):
        return False
    if META_LEARNING & {getattr(n, "attr", "") for n in walk(loop.node)}:
        return False
    text = ast.unparse(loop.node.iter)
    counted = loop.over is not None and loop.over.kind == "counted" and not re.search(r"len\(|size|shape", text)
    return counted or bool(re.search(r"chunk|split|micro|accum", text))


def alone(scenario: Scenario, backward: Occurrence) -> bool:
    """Whether a step uses this gradient and no other: SAM's second one, after the first was set to zero."""
    kinds = ("backward", "zero", "step")
    before = next((s.kind for s in reversed(scenario.before(backward)) if s.kind in kinds), "")
    after = next((s.kind for s in scenario.after(backward) if s.kind in kinds), "")
    return before == "zero" and after == "step"


def same_batch(value: Value | None, window: Loop | None) -> bool:
    """Whether each iteration has the same batch: attacks on one batch, whose sum, or last gradient, may be intended."""
    if window is None or value is None:
        return False
    if value.target is not None and value.target < window.birth:
        return True
    inside = {id(part) for part in walk(window.node)}
    passes = [e.node for e in dict.fromkeys((value.forward, *value.chain)) if e is not None and id(e.node) in inside]
    changed = {p.id for p in walk(window.node) if isinstance(p, ast.Name) and isinstance(p.ctx, ast.Store)}
    given = [argument for call in passes if isinstance(call, ast.Call) for argument in arguments(call)]
    fixed = all(not isinstance(p, ast.Call) and getattr(p, "id", "") not in changed for one in given for p in walk(one))
    return bool(given) and fixed


def arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def length_in_batch(window: Loop | None, loop: TrainingLoop) -> bool:
    """Whether the window's length goes into a batch: `batch["scale"] = 1 / (count * steps)`."""
    within = window or loop.statement
    over = window.node.iter if window is not None and isinstance(window.node, ast.For) else ast.Pass()
    names = {p.id for p in walk(over) if isinstance(p, ast.Name)}
    names |= {name.split(".")[-1] for name in re.findall(r"([A-Za-z_][\w.]*)#", loop.period)}
    for part in walk(within.node) if within is not None else ():
        if isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Subscript):
            found = {getattr(p, "attr", getattr(p, "id", "")) for p in walk(part.value)}
            if names & found and any(isinstance(p, ast.BinOp) for p in walk(part.value)):
                return True
    return False


@scenario_rule("GL302")
def divided_twice(scenario: Scenario) -> Iterator[Hit]:
    for backward in scenario.of("backward"):
        value = backward.event.value
        if value is not None and value.kind == "tensor":
            divisors = [f for f in value.factors if f.sign == "/"]
            if (found := second_division(scenario, backward, divisors)) is not None:
                yield Hit(backward, node=found.node, path=found.path)


def second_division(scenario: Scenario, backward: Occurrence, divisors: list[Factor]) -> Factor | None:
    """The division of a loss that is divided by the same already, or is to be by what its backward() is of."""
    value, through = backward.event.value, backward.event.through
    assert value is not None
    if through is not None and through.kind in ("lightning", "engine"):
        again = [f for f in divisors if divides_too(scenario, backward, f)]
    elif through is not None and through.kind == "accelerator" and divides_itself(through, backward):
        again = [f for f in divisors if is_length(f, through.steps)]
    else:
        whole = [f for f in divisors if all(f not in term.factors for term in value.parts)]
        within = scenario.loop.boundary or id(backward.event) in scenario.loop.in_window
        again = [f for i, f in enumerate(whole) if within and f.text in [other.text for other in whole[:i]]]
    return again[-1] if again else mean_divided(scenario, backward, divisors)


def divides_itself(accelerator: Value, backward: Occurrence) -> bool:
    """Whether an accelerator's backward() divides the loss: by what it was made with, inside accumulate() or not."""
    return backward.inside("accumulate") is not None or (accelerator.steps is not None and accelerator.steps.value != 1)


def divides_too(scenario: Scenario, backward: Occurrence, divisor: Factor) -> bool:
    """Whether a divisor is the length of the window, by which Lightning, transformers or DeepSpeed divides a loss."""
    node, through = backward.event.node, backward.event.through
    assert through is not None
    if through.kind == "engine":  # with a window of its own where the program counts micro-batches itself
        assert isinstance(node, ast.Call)
        own = any(a.kind != "sync" for a in scenario.loop.boundary) or "deepspeed" not in through.name or node.keywords
        return not own and STEPS in divisor.text
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    if node.name != "compute_loss":
        return "accumulate_grad_batches" in divisor.text
    given = {a.arg for a in [*node.args.args, *node.args.kwonlyargs]}
    # newer versions of transformers leave the division to it
    return node.args.kwarg is None and "num_items_in_batch" not in given and STEPS in divisor.text


def mean_divided(scenario: Scenario, backward: Occurrence, divisors: list[Factor]) -> Factor | None:
    """The division of a loss function's mean by the number of samples of the batch that it is the mean of."""
    value, loop = backward.event.value, scenario.loop
    assert value is not None
    mean = value.maker.startswith("torch.nn") and value.source == "criterion" and value.reduction == "mean"
    unsure = value.parts or value.choice or value.perhaps_divided or value.reduced
    through = backward.event.through
    whole_run = loop.statement is None and (through is None or through.kind != "lightning")
    if not mean or unsure or loop.nested or whole_run or any(f.sign == "*" for f in value.factors):
        return None
    if any(e.kind == "keep" and e.mark in value.roots for e in loop.events):
        return None  # a sum over the samples, perhaps
    scope = loop.statement.node if loop.statement is not None else backward.event.node
    return next((f for f in divisors if SAMPLES.search(f.text) and of_this_batch(f, scope)), None)


def of_this_batch(factor: Factor, scope: ast.AST) -> bool:
    """Whether what a factor counts is bound in the loop over batches, or given to the method that receives one."""
    bound = {p.arg for p in walk(scope) if isinstance(p, ast.arg)} - {"self"}
    bound |= {p.id for p in walk(scope) if isinstance(p, ast.Name) and isinstance(p.ctx, ast.Store)}
    inside = any(part is factor.node for part in walk(scope))
    used = {p.id for p in walk(factor.node) if isinstance(p, ast.Name)} - {"len"}
    return inside and bool(used) and used <= bound


def is_length(factor: Factor, steps: Value | None) -> bool:
    """Whether a divisor is an accelerator's own number of micro-batches."""
    if STEPS in factor.text or steps is None:
        return STEPS in factor.text
    value = factor.value
    return value is steps or (steps.kind == value.kind == "number" and steps.value == value.value)


@scenario_rule("GL303", windows=True)
def gradients_divided_by_hand(scenario: Scenario) -> Iterator[Hit]:
    if any(e.kind == "reduce" for e in scenario.loop.events):
        return
    for scale in scenario.of("scale"):
        if scale.event.in_place == "div_" and scenario.partial(scale):
            yield Hit(scale)


@scenario_rule("GL304", windows=True)
def clip_each_micro_batch(scenario: Scenario) -> Iterator[Hit]:
    for clip in scenario.of("clip"):
        if scenario.partial(clip) and any(s.kind == "backward" and s.k == clip.k for s in scenario.before(clip)):
            yield Hit(clip)
