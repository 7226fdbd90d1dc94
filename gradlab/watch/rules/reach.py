"""Rules about what losses reach, and what clipping and steps act on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from gradlab.watch.call_site import CallSite, format_site
from gradlab.watch.events import BackwardPass, Seen, Violation
from gradlab.watch.making_lines import RATE, WEIGHTS, attribute_line, handed_from, made_at
from gradlab.watch.rules.accumulation import close
from gradlab.watch.source_lines import freezing_line
from gradlab.watch.tracking.early_freezes import EARLY
from gradlab.watch.tracking.initial_weights import InitialWeights, is_uniform
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker, listed
from gradlab.watch.tracking.unheld_weights import keeper_of
from gradlab.watch.uses_in_text import may_unfreeze

STARVED = 2
"""Steps without a gradient, from the first on, after which an optimizer that is alone is known to train nothing."""
WHOLE = 0.99
"""Factor of a loss from which it is no share of one whose other shares are passed elsewhere."""
LONG = 40
"""Updates after which what was frozen for a beginning is trained."""
OFTEN = 20
"""The same where others are trained: the loss of this one may begin later."""
UPDATES = 10
"""Steps in a loop without any backward pass."""
FROZEN = 10
"""Updates that parameters stay frozen which were trained before; see `EarlyFreezes`."""
AGAIN = 3
"""Updates on losses of which a term was one of an earlier update."""
OPPOSED = 3
"""Updates in which two gradients of the same weights must point in opposite directions."""


def at_step(
    tracker: OptimizerTracker, trackers: Sequence[OptimizerTracker], site: CallSite | None, seen: Seen
) -> Iterator[Violation]:
    """When an optimizer steps."""
    alone = len(trackers) == 1 and not tracker.others.untracked
    if alone and not tracker.feeding.fed and tracker.feeding.starved == STARVED:
        since = tracker.attempts + 2 - STARVED
        yield starved(tracker, seen, site, since)
    if tracker.writes.since_step:
        return
    yield from stepped_again(tracker, site)
    yield from stepped_on_by_others(tracker, trackers, site)
    for b in tracker.own if tracker.attempts else ():  # the lines of their terms are known from the second update on
        for key in list(b.advantages.keys() & seen.regressed & tracker.ids)[:1]:
            yield "advantage-not-detached", b.advantages[key] or b.site, ""
        for key in list(b.bootstraps.keys() & tracker.ids)[:1]:
            yield "target-not-detached", b.bootstraps[key] or b.site, ""
    yield from without_data(tracker, trackers)
    unused = tracker.unused
    again = [b for b in unused if tracker.index in b.stepped_terms]
    tracker.terms_again += bool(again)
    if again and tracker.terms_again >= AGAIN:
        yield "backward-twice", given_at(again[0]), "losses that earlier updates have stepped on are terms of it"
    for b in unused:
        before = [each for each in b.extends if each in unused]
        grows = any(first in unused for each in before for first in each.extends)
        if grows or any(each.weight.product > WHOLE for each in before):
            yield "backward-twice", given_at(b), "the loss of a pass before it is a term of it"
            break
    for b in unused:
        if close(b.weight.product, 1) and any(r in unused and close(r.weight.product, 1) for r in b.repeats):
            yield "backward-twice", given_at(b), ""
    if unused and not tracker.clips:
        for clip, why in seen.stray_clips:
            yield "clip-elsewhere", clip, why


def given_at(b: BackwardPass) -> CallSite | None:
    """The line that says which loss goes backward."""
    return handed_from(tuple((code, number) for code, number, _ in b.path)) or b.site


def without_data(tracker: OptimizerTracker, trackers: Sequence[OptimizerTracker]) -> Iterator[Violation]:
    """At a step: does it train both sides of all comparisons of its losses, which are nothing but these?"""
    pairs = [each for b in tracker.accumulated for each in b.comparisons]
    if not pairs or not tracker.attempts or not all(b.comparisons for b in tracker.accumulated):
        return
    others = {key for each in trackers for key in each.ids} - tracker.ids
    judged_by_another = any((one ^ two) & others for one, two, _ in pairs)  # as by an autoencoder's error
    if not judged_by_another and all(a & tracker.ids and b & tracker.ids for a, b, _ in pairs):
        yield "loss-without-data", pairs[0][2] or tracker.accumulated[0].site, ""


def stepped_again(tracker: OptimizerTracker, site: CallSite | None) -> Iterator[Violation]:
    """At a step: does it use what the step before has used, at weights that nothing else has moved since?"""
    held = tracker.accumulated
    if held and all(tracker.index in b.used_by for b in held) and tracker.is_left_as_stepped:
        tracker.steps_again += 1
        if tracker.steps_again >= max(AGAIN, tracker.attempts / 4):
            yield "step-twice", site, ""


def stepped_on_by_others(
    tracker: OptimizerTracker, trackers: Sequence[OptimizerTracker], site: CallSite | None
) -> Iterator[Violation]:
    """At a step on gradients that another optimizer has stepped on."""
    for b in tracker.own:
        for other in [trackers[i] for i in b.used_by if i < len(trackers)]:
            if other.ids & tracker.ids:
                if not other.started:
                    if other.index not in tracker.others.shared:  # it is seen at each update
                        tracker.others.shared[other.index] = held_twice(tracker, other, site)
                    yield tracker.others.shared[other.index]
            elif is_leak(tracker, other, b):
                through_this = (tracker.index, other.index) in b.between
                given = None if through_this else b.between.get((other.index, tracker.index))
                yield (
                    "gradient-of-another-loss",
                    given or b.site,
                    f"a step at {format_site(other.step_site)} was made on it",
                )
        if b.used_by_untracked:
            yield "weights-in-two-optimizers", site, f"the other step is that of {b.used_by_untracked[0]}"


def held_twice(tracker: OptimizerTracker, other: OptimizerTracker, site: CallSite | None) -> Violation:
    """At a step of weights of which the other optimizer's latest step has moved some. If each holds the same ones, the
    step is what is wrong; else the optimizer that holds more than its own, or that comes to them last."""
    name, detail = "weights-in-two-optimizers", f"the other step is at {format_site(other.step_site)}"
    if tracker.ids == other.ids:
        return name, site, detail
    holder = other if other.ids > tracker.ids else tracker
    shared = listed([tracker.name_of(p) for p in tracker.params if id(p) in other.ids])
    detail = f"{shared} are in the one that is made here, and in another one; {detail}"
    made = made_at(name, holder.optimizer, site, detail, part=WEIGHTS, used="and this one at")
    return made if made[1] != site else (name, site, f"{shared}; the other step is at {format_site(other.step_site)}")


def stepped_by_untracked(tracker: OptimizerTracker, optimizer: Any, site: CallSite | None) -> Iterator[Violation]:
    """At a step of an optimizer that was not passed to the watch and has weights of a tracked one."""
    if tracker.writes.since_step:
        return
    if any(tracker.index in b.used_by for b in tracker.accumulated):
        yield "weights-in-two-optimizers", site, f"the other step is at {format_site(tracker.step_site)}"
    for b in tracker.unused:
        b.used_by_untracked.append(f"{type(optimizer).__name__} at {format_site(site)}")


def is_leak(tracker: OptimizerTracker, other: OptimizerTracker, b: BackwardPass) -> bool:
    """Whether a gradient that another optimizer has stepped on is a by-product in this one's.

    Several losses that share a trunk are no leak: so the loss must reach one of both networks through the other, and
    what it adds must oppose, every time, what the later loss does.
    """
    through_this = (tracker.index, other.index) in b.between
    own = [each for each in tracker.accumulated if not each.used_by]
    through_other = all((other.index, tracker.index) in each.between for each in [b, *own])
    return bool(own) and (through_this or through_other) and tracker.others.num_opposed >= OPPOSED


def at_end(tracker: OptimizerTracker, trackers: Sequence[OptimizerTracker], seen: Seen) -> Iterator[Violation]:
    """The loop is over."""
    if not tracker.feeding.fed and tracker.feeding.starved >= OFTEN and len(trackers) > 1:
        yield starved(tracker, seen, tracker.step_site)
    elif tracker.attempts >= UPDATES and not tracker.feeding.fed and not seen.num_backwards and tracker.is_still:
        yield "step-without-gradient", tracker.step_site, "no backward pass was made"
    elif (tracker.feeding.empty_steps or 0) >= OFTEN:
        for other in [t for t in trackers if t is not tracker and t.ids & tracker.ids][:1]:
            detail = f"they are those of another optimizer, whose step is at {format_site(other.step_site)}"
            yield "step-without-gradient", tracker.step_site, detail
        if tracker.num_backwards and tracker.is_still and not tracker.dropped_last:
            yield "step-without-gradient", tracker.step_site, "all gradients are zeroed before it"
    still = [g for g in tracker.optimizer.param_groups if tracker.rates.is_always_zero(g)]
    names = [tracker.name_of(p) for g in still for p in g["params"] if p.requires_grad and p.grad is not None]
    if names and tracker.attempts >= OFTEN:
        yield made_at("learning-rate-zero", tracker.optimizer, tracker.step_site, listed(names), part=RATE)
    unstepped = not tracker.attempts and tracker.num_backwards >= OFTEN and tracker.is_still
    moved = tracker.others.untracked or any(other.attempts and other.ids & tracker.ids for other in trackers)
    if unstepped and not moved:
        passes = f"{tracker.num_backwards} backward passes"
        beside = [t.step_meant for t in trackers if t.attempts and t.backward_site == tracker.backward_site]
        if beside and beside[0] is not None:
            detail = f"{passes} at {format_site(tracker.backward_site)}; another optimizer steps after them here"
            yield "step-missing", beside[0], detail
        else:
            yield "step-missing", tracker.backward_site, passes
    frozen, steps = tracker.early_freezes.frozen, tracker.early_freezes.steps
    if tracker.attempts <= EARLY:  # it was not stepped any more, while another one was
        frozen = [p for p in frozen if not p.requires_grad]
        steps = max(other.attempts for other in trackers) - EARLY
    if frozen and steps >= FROZEN:
        yield (
            "frozen-and-forgotten",
            site_of_freeze(tracker, frozen, seen),
            listed([tracker.name_of(p) for p in frozen]),
        )


def held_by_none(
    tracker: OptimizerTracker, models: Sequence[nn.Module], weights: Sequence[Tensor], names: str
) -> Violation:
    """The loop is over. Where they are kept hidden from `parameters()`, the line that keeps them so is what is wrong;
    else what the optimizer is made of."""
    name, kept = "weights-without-optimizer", {keeper_of(models, p) for p in weights}
    line = attribute_line(*keeper) if len(kept) == 1 and (keeper := kept.pop()) is not None else None
    if line is not None:
        return name, line, f"{names}, which parameters() does not find in a list or dictionary"
    return made_at(name, tracker.optimizer, tracker.step_site, f"the optimizer does not hold {names}", part=WEIGHTS)


def frozen_as_drawn(
    tracker: OptimizerTracker, initial: InitialWeights, seen: Seen, names: dict[Tensor, str]
) -> Iterator[Violation]:
    """The loop is over: are all weights of a group frozen, and still as a layer draws them?

    A group with a learning rate of its own is meant to be trained at some time. Where others were unfrozen in the
    meantime, or the text unfreezes any, its turn may come.
    """
    groups = tracker.optimizer.param_groups
    trained = {id(p) for g in groups for p in g["params"] if p.requires_grad}
    if tracker.attempts < LONG or len(groups) < 2 or trained - initial.ids(tracker):
        return
    if may_unfreeze(tracker.step_site):
        return
    moves = initial.moves(tracker)
    for group in groups:
        matrices = [p for p in group["params"] if p.dim() > 1]
        drawn = sum(p.numel() for p in matrices if is_uniform(p))
        frozen = not trained & {id(p) for p in group["params"]}
        moved = any(moves[id(p)][0] for p in matrices if id(p) in moves)  # small ones may look as drawn, and are not
        if frozen and not moved and group.get("lr", 0.0) and drawn and 2 * drawn >= sum(p.numel() for p in matrices):
            frozen_names = listed([names.get(p, "a parameter") for p in group["params"]])
            detail = f"{frozen_names}, which have a learning rate and are as they were drawn"
            yield "frozen-and-forgotten", site_of_freeze(tracker, group["params"], seen), detail


def site_of_freeze(tracker: OptimizerTracker, frozen: Sequence[Tensor], seen: Seen) -> CallSite | None:
    site = next((site for site, ids in seen.freezes if {id(p) for p in frozen} <= ids), None)
    if site is None and tracker.step_site is not None:
        site = freezing_line(tracker.step_site[0])
    return site or tracker.step_site


def starved(tracker: OptimizerTracker, seen: Seen, site: CallSite | None, *since: int) -> Violation:
    """Named where the graph of a loss ends, if it does; else where the optimizer is given its weights."""
    name, detail, cut = "step-without-gradient", why_starved(tracker, seen), tracker.cut_site or seen.leaf_site
    if cut is not None or not seen.num_backwards or tracker.of_model:
        return name, cut or site, detail, *since  # type: ignore[return-value]
    return made_at(name, tracker.optimizer, site, detail, *since, part=WEIGHTS)


def why_starved(tracker: OptimizerTracker, seen: Seen) -> str:
    if tracker.cut_site is not None:
        return f"their graph ends here, and the step is at {format_site(tracker.step_site)}"
    if seen.leaf_site is not None:
        return "the tensor that backward() is called on was made anew, without a graph"
    if not any(p.requires_grad for p in tracker.params):
        return "none of its parameters requires a gradient"
    return "" if tracker.of_model else "none of its parameters belongs to the model"


def clipped_in_place_of(
    tracker: OptimizerTracker, trackers: Sequence[OptimizerTracker]
) -> Iterator[tuple[OptimizerTracker, Violation]]:
    """Before an optimizer's gradients are zeroed: were they clipped, and those of another one meant?"""
    for site, b, index in tracker.others.clips:
        if tracker.index not in b.used_by:
            other = trackers[index]
            yield other, ("clip-elsewhere", site, f"the step at {format_site(other.step_site)} is not clipped")


def note_clips_for_others(tracker: OptimizerTracker, trackers: Sequence[OptimizerTracker]) -> None:
    """At an unclipped step: were gradients of another optimizer clipped since its last backward pass?"""
    if tracker.clips or not tracker.unused:
        return
    b = tracker.unused[-1]
    for other in trackers:
        if other is not tracker and other.clips and other.unused[-1:] == [b]:
            clip = other.clips[-1]
            if clip.num_accumulated == len(other.accumulated):
                other.others.clips.append((clip.handed_from, b, tracker.index))
