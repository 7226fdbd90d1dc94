"""Networks, layers and terms whose results reach the losses by cut graphs alone, so that no gradient reaches them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from gradlab.audit.knowledge.tensor_methods import DETACHED
from gradlab.audit.rules.ownership import is_part
from gradlab.audit.rules.reach import PLAIN, separate
from gradlab.audit.rules.registry import loop_rule
from gradlab.audit.rules.reporting import uncertain
from gradlab.audit.source.project import methods_of
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.event_tree import events
from gradlab.audit.trace.tensors import made_of
from gradlab.audit.trace.training_loop import TrainingLoop, same
from gradlab.audit.trace.values import Event, Value

WEIGHTS = re.compile(r"\bnn\.(Linear|Conv\w*\dd|Embedding|LSTM|GRU|RNN|Transformer\w+|MultiheadAttention|Bilinear)\(")
"""What makes a layer with weights, alone or in a stack."""
MEANT = re.compile(
    r"requires_grad|fr[eo]ez|frozen|\.eval\(|load_state_dict|momentum|\bema\b|\.copy_\(|stop_?grad", re.I
)
"""What says that layers of a class, or gradients in it, are to stop."""
CUTS = {*DETACHED, "tensor", "as_tensor"}
"""What is called to have the numbers of a tensor alone."""
CALLED = re.compile(rf"forward|{PLAIN.pattern}")
"""Attributes of a network that use its weights in no other way than a call of it."""


@loop_rule("GL712")
def never_reached(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    """An optimizer has the weights, and every way from them to every loss is cut."""
    losses = known_losses(loop)
    alive = {layer for loss in losses.values() for layer in loss.layers}
    own = [(e, cut) for e, loss in losses.items() if e in loop.events for cut in loss.lost]
    cuts = {(e, cut) for e, cut in own if cut[0] not in alive and trains(loop, cut[0])}
    for_others = {cut for e, cut in cuts if not used(loop, e, cut[0])}
    yield from ((path, node) for _, (layer, node, path) in cuts if (layer, node, path) not in for_others)


@loop_rule("GL615")
def constant_term(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    """A term comes by cut graphs alone from weights that the rest of the loss trains."""
    whole = known_losses(loop)
    losses = whole or known_losses(loop, traced=False)
    alive = {layer for loss in losses.values() for layer in loss.layers}
    unknown = not any(optimizer.trained for optimizer in loop.optimizers())
    shown = {id(one) for loss in losses.values() for one in made_of(loss)}
    for e, term in ((e, term) for e, loss in losses.items() if e in loop.events for term in loss.constants):
        if term.kind == "tensor" or not any(id(one) in shown for one in term.made_of):
            found = [cut for cut in term.lost if cuts_alone(cut[1]) and (unknown or held(loop, cut[0]))]
            found = [cut for cut in found if whole or on_the_spot(cut[1]) or apart(term, losses)]
            if all(layer in alive for layer, _, _ in found):
                own = [cut for cut in found if cut[1] is term.cut] or found
                places = [(path, node) for _, node, path in sorted(own, key=lambda cut: cut[0].number)[:1]]
                if places and term.term is not None and has_a_name(e, places[0][1]):
                    places = [term.term[::-1]]
                yield from places


def has_a_name(event: Event, cut: ast.AST) -> bool:
    """Whether what has no graph is kept under a name, as on purpose: what uses it is at fault."""
    return event.module is not None and any(one.value is cut for one in event.module.source.nodes.of(ast.Assign))


def known_losses(loop: TrainingLoop, traced: bool = True) -> dict[Event, Value]:
    """The losses of a loop and of what is around it, by their backward passes; none where one is not known.

    traced: or where one comes from more than is known.
    """
    around = [event for outer in loop.outer for event in events(outer.body)]
    passes = {e: e.value for e in [*loop.before, *loop.events, *loop.after, *around] if e.kind == "backward"}
    found = {
        e: loss for e, loss in passes.items() if loss is not None and (loss.traced or not traced) and not loss.choice
    }
    elsewhere = any(e.kind in ("given", "taken") for e in loop.events) or uncertain(loop, "gradients", "self")
    return {} if elsewhere or len(found) < len(passes) else found


def trains(loop: TrainingLoop, layer: Value) -> bool:
    """Whether the weights of a layer, or of those that a sample is drawn from, are to be trained."""
    if layer.kind == "sample":
        return all(trains(loop, one) for one in layer.args if one.kind != "sample")
    return has_weights(loop, layer) and not meant(layer) and held(loop, layer)


def used(loop: TrainingLoop, backward: Event, layer: Value) -> bool:
    """Whether an optimizer that has a layer steps before it zeroes what a backward pass leaves."""
    holders = [o for o in loop.optimizers() if holds(o, layer)]
    later = loop.events[loop.events.index(backward) :]
    for event in (e for e in later if e.kind in ("step", "zero")):
        value = event.value
        if value is not None and (value.root() is layer or any(same(value, one) for one in holders)):
            return event.kind == "step"
    return not holders


def cuts_alone(node: ast.AST) -> bool:
    """Whether a graph is cut by what is written for that, and not because all is computed without one."""
    return isinstance(node, ast.Attribute) or getattr(getattr(node, "func", None), "attr", "") in CUTS


def on_the_spot(node: ast.AST) -> bool:
    """Whether what loses its graph is computed in the same expression, so that nothing else has it."""
    inside = [*node.args, node.func] if isinstance(node, ast.Call) else [node]
    return any(isinstance(part, ast.Call) and bool(part.args) for one in inside for part in walk(one))


def apart(term: Value, losses: dict[Event, Value]) -> bool:
    """Whether what lost its graph is a tensor that is in none of the losses, of which none is of unknown making."""
    known = not any(loss.opaque for loss in losses.values())
    return (
        known
        and bool(term.made_of)
        and not any(one.roots <= loss.roots for loss in losses.values() for one in term.made_of)
    )


def held(loop: TrainingLoop, layer: Value) -> bool:
    return any(holds(optimizer, layer) for optimizer in loop.optimizers())


def holds(optimizer: Value, layer: Value) -> bool:
    """Whether an optimizer has the weights of a layer."""
    return any(model.root() is layer or is_part(layer, model.root()) for model in optimizer.trained)


def has_weights(loop: TrainingLoop, layer: Value) -> bool:
    """Whether a layer is made with weights of its own, or is a network that is trained as a whole."""
    if layer.choice:
        return all(has_weights(loop, one.root()) for _, one in layer.choice)
    if layer.shared or layer.kind not in ("model", "ddp"):
        return False
    if layer.within is None:
        return separate(loop, (layer,))
    text = ast.unparse(layer.call) if layer.call is not None else " ".join(map(ast.unparse, layer.lineage))
    return WEIGHTS.search(text.replace("torch.nn.", "nn.")) is not None


def meant(layer: Value) -> bool:
    """Whether a layer is frozen, or its classes say that gradients are to stop, or use its weights by themselves."""
    if layer.frozen and not layer.thawed:
        return True
    owner, texts = layer, [text for node in layer.lineage for text in said(node)]
    owners: list[Value] = []
    while owner.within is not None and len(owners) < 20:
        names = [name for name, part in owner.within.attributes.items() if part is owner]
        for node in owner.within.lineage:
            attributes = (
                part for part in walk(node) if isinstance(part, ast.Attribute) and not CALLED.fullmatch(part.attr)
            )
            if {f"self.{name}" for name in names} & {dotted(part.value) for part in attributes}:
                return True
        owner = owner.within
        owners.append(owner)
    texts += [text for one in owners for node in one.lineage for text in said(node, resumed(node))]
    return any(MEANT.search(text) for text in texts)


def said(node: ast.ClassDef, left_out: Sequence[ast.AST] = ()) -> list[str]:
    """The texts of a class without some of its methods, and without what sets all of it to evaluation."""
    parts = [*node.bases, *(part for part in node.body if part not in left_out)]
    return [node.name, *(ast.unparse(part).replace("self.eval()", "") for part in parts)]


def resumed(owner: ast.ClassDef) -> list[ast.AST]:
    """The methods with which a class loads all that it saved: they say nothing of one of its networks."""
    of_all = [m for m in methods_of(owner).values() if "self.state_dict" in called(m)]
    saved = any("torch.save" in called(method) for method in of_all)
    return [method for method in of_all if saved and "torch.load" in called(method)]


def called(node: ast.AST) -> set[str]:
    """The names of all that is called in a text."""
    return {dotted(part.func) for part in walk(node) if isinstance(part, ast.Call)}
