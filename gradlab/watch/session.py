"""A watched loop: what it calls is told to the followers of its optimizers, and put right when it ends."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradlab.monitor import Summary
from gradlab.watch import rules
from gradlab.watch.faults import KINDS, Fault, Seen
from gradlab.watch.follower import Backward, Clip, Follower, Move
from gradlab.watch.graph import Weight, token, weigh
from gradlab.watch.output import Output
from gradlab.watch.taps import After, listen, owner_of
from gradlab.watch.where import Site, site

SAME = {"clip-before-backward", "clip-after-step"}
"""One and the same call may be either, seen from the next update."""


class Watch:
    """Context manager around a loop. What it sees is in `faults`, and what was measured in `folder` at the end."""

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Any,
        scaler: Any = None,
        schedule: Any = None,
        folder: str | Path | None = None,
        strict: bool = False,
        every: int = 5,
        step_every: int = 50,
        quiet: bool = False,
    ) -> None:
        """model, optimizer, schedule: one, or several. folder: for what was measured; None: one of its own in
        outputs/watch. strict: raise `Fault` at the first error. every, step_every: updates between two records of each
        layer's gradient, and of how far it moves (0: never). quiet: say nothing while the loop runs.
        """
        self.models = several(model)
        self.optimizers = [inner(o, "optimizer") for o in several(optimizer)]
        self.schedules = [inner(s, "scheduler") for s in several(schedule)]
        self.scaler, self.strict, self.quiet = scaler, strict, quiet
        self.ddp = next((m for m in self.models if hasattr(m, "require_backward_grad_sync")), None)
        self.ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        self.main = self.ranks == 1 or torch.distributed.get_rank() == 0
        named = {p: clean(name) for m in self.models for name, p in m.named_parameters()}
        self.followers = []
        for i, o in enumerate(self.optimizers):
            params = [p for group in o.param_groups for p in group["params"] if p.requires_grad]
            names = [named.get(p, f"parameter{j}") for j, p in enumerate(params)]
            self.followers.append(Follower(i, o, names, params))
        if not self.followers or not all(f.params for f in self.followers):
            raise ValueError("watch: an optimizer without parameters to train")
        path = Path(folder or Path("outputs", "watch", time.strftime("%Y-%m-%d_%H-%M-%S")))
        monitor = Summary(every, step_every)
        main = self.models[0]
        self.outputs = [
            Output(path / f"optimizer{f.index}" if f.index else path, monitor, main, f, write=self.main)
            for f in self.followers
        ]
        self.folder = path
        self.of = {id(p): f for f in self.followers for p in f.params}
        self.faults: list[Seen] = []
        self.forwards = self.depth = self.scale_calls = self.scaler_updates = 0
        self.half = self.raw = self.wrapped = False
        self.sync_of_forward: bool | None = None
        self.scaling: Follower | None = None
        self.scaled: list[tuple[weakref.ref[Tensor], Tensor, Weight]] = []
        self.stack = ExitStack()
        self.active = self.broken = False
        self.euclidean = True
        """Whether the latest norm that was asked for is the L2 norm."""
        self.tapped: set[tuple[int, str]] = set()
        self.status = "completed"
        self.error: str | None = None

    # the context

    def __enter__(self) -> Watch:
        try:
            for output in self.outputs:
                output.open()
            self.listen()
        except BaseException:
            self.stack.close()
            raise
        self.active = True
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.active = False
        self.stack.close()
        if error is not None:
            self.status = (
                "interrupted" if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)) else "failed"
            )
            self.error = " ".join(str(error).split())[:1000] or type(error).__name__
        try:
            for output in self.outputs:
                output.close(self.scale_now(), self.faults_of(output), self.status, self.error, self.has_scaler)
        except Exception as failed:
            self.say(f"gradlab.watch: {self.folder} was not finished: {type(failed).__name__}: {failed}")

    def report(self) -> str:
        """What was found, as text."""
        lines = [line for output in self.outputs for line in output.report(self.faults_of(output), self.has_scaler)]
        return "\n".join([*lines, f"all of it: {self.folder}"])

    def faults_of(self, output: Output) -> list[Seen]:
        return [s for s in self.faults if s.optimizer == output.follower.index]

    # what is listened to

    def listen(self) -> None:
        enter = self.stack.callback
        for f in self.followers:
            enter(f.optimizer.register_step_pre_hook(Hook(self, "before_step", f)).remove)
            enter(f.optimizer.register_step_post_hook(Hook(self, "after_step", f)).remove)
            self.tap(owner_of(f.optimizer, "zero_grad"), "zero_grad", self.on_zero_grad)
        self.tap(nn.Module, "zero_grad", self.on_module_zero_grad)
        self.tap(torch.autograd, "backward", self.on_backward)
        for m in self.models:
            if getattr(m, "_compiled_call_impl", None) is None:
                enter(m.register_forward_pre_hook(Hook(self, "before_forward", m)).remove)
        if self.ddp is not None:
            enter(self.ddp.register_forward_hook(Hook(self, "after_wrapper", self.ddp), always_call=True).remove)
            enter(self.ddp.module.register_forward_pre_hook(Hook(self, "before_inner", self.ddp.module)).remove)
        clip = torch.nn.utils.clip_grad
        for owner, norm, scale in (
            (clip, "_get_total_norm", "_clip_grads_with_norm_"),
            (torch.nn.utils, "get_total_norm", "clip_grads_with_norm_"),
        ):
            self.tap(owner, norm, self.on_total_norm)
            self.tap(owner, scale, self.on_clip_norm)
        self.tap(clip, "_group_tensors_by_device_and_dtype", self.on_group)
        if self.scaler is not None:
            for name in ("scale", "unscale_", "step", "update"):
                self.tap(owner_of(self.scaler, name), name, getattr(self, f"on_scaler_{name.strip('_')}"))
        for schedule in self.schedules:
            self.tap(owner_of(schedule, "step"), "step", self.on_schedule)

    def tap(
        self, owner: Any, name: str, what: Callable[[tuple[Any, ...], dict[str, Any]], After | None] | None
    ) -> None:
        """Listen to a function, once; a mistake of this package's own ends the watching, and not the training."""
        if owner is None or what is None or name not in vars(owner):
            return
        key = (id(owner), name)
        if key in self.tapped:
            return
        self.tapped.add(key)

        def told(args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
            after = self.guarded(what, args, kwargs)
            return None if after is None else lambda result, error: self.guarded(after, result, error)

        self.stack.callback(listen(owner, name, told))

    def guarded(self, what: Callable[..., Any], *args: Any) -> Any:
        if self.broken or not self.active:
            return None
        try:
            return what(*args)
        except Fault:
            raise
        except Exception as error:
            self.broken = True
            self.say(f"gradlab.watch: ended by a mistake of its own: {type(error).__name__}: {error}")
            return None

    # faults

    def found(self, f: Follower, what: Iterable[rules.Found]) -> None:
        for code, where, detail in what:
            self.fault(code, where, f, detail)

    def fault(self, code: str, where: Site | None, f: Follower, detail: str = "") -> None:
        for known in self.faults:
            same = known.code == code or (known.site == where and {known.code, code} <= SAME)
            if same and known.optimizer == f.index:
                known.times += 1
                return
        seen = Seen(code, where, f.attempts + 1, detail, f.index)
        self.faults.append(seen)
        if KINDS[code].severity == "error" and self.strict:
            raise Fault(seen)
        self.say(f"gradlab.watch: {seen.line} (update {seen.update})")

    def say(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    # forward

    def before_forward(self, module: nn.Module, *_: Any) -> None:
        if self.depth or not torch.is_grad_enabled():
            return
        self.forwards += 1
        self.wrapped = module is self.ddp
        device = self.followers[0].params[0].device.type
        self.half = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is torch.float16
        self.sync_of_forward = self.ddp.require_backward_grad_sync if self.ddp is not None else None

    def after_wrapper(self, *_: Any) -> None:
        self.wrapped = False

    def before_inner(self, *_: Any) -> None:
        """The module inside of DDP runs: is it DDP that calls it?"""
        if not self.wrapped and not self.depth and torch.is_grad_enabled():
            self.raw = True

    # backward

    def on_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        """Before `torch.autograd.backward`, which every tensor's calls. Checkpointing calls it within itself."""
        self.depth += 1
        if self.depth > 1:
            return self.inner_backward_ended
        for f, output in zip(self.followers, self.outputs, strict=True):
            if not f.stepping:
                output.numbers.finish(self.scale_now())
            f.look()
        tensors = args[0] if args else kwargs.get("tensors")
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors) if tensors is not None else []
        where = site()
        loss, weight, scaled = self.weighed(roots[0]) if len(roots) == 1 else (None, Weight(), False)
        first = roots[0] if roots else self.followers[0].params[0]
        synced = self.ddp.require_backward_grad_sync if self.ddp is not None else None
        b = Backward(where, loss, weight, scaled, self.half, self.forwards, synced, self.scaler_updates, token(first))
        in_autocast = torch.is_autocast_enabled(first.device.type)
        raw, sync_of_forward = self.raw, self.sync_of_forward
        self.raw, self.half, self.forwards, self.sync_of_forward = False, False, 0, None

        def after(result: Any, error: bool) -> None:
            self.depth -= 1
            if isinstance(b.loss, Tensor) and b.loss.device.type == "cpu":
                b.loss = b.loss.item()
            for f in self.followers:
                now = f.versions()
                if now != f.mark:
                    f.mark, b.versions[f.index] = now, f.version
                    self.outputs[f.index].half |= b.half
                    f.held.append(b)
                    if f.stepping:
                        f.inside.append(b)
                        if len(f.inside) == 1 and not error:  # before it is clipped, or the weights move
                            self.outputs[f.index].numbers.measure(self.scale_in(f))
                    if not error:
                        self.judge_backward(f, b, in_autocast, raw, sync_of_forward)

        return after

    def inner_backward_ended(self, result: Any, error: bool) -> None:
        self.depth -= 1

    def judge_backward(
        self, f: Follower, b: Backward, in_autocast: bool, raw: bool, sync_of_forward: bool | None
    ) -> None:
        if in_autocast:
            self.fault("backward-inside-autocast", b.site, f)
        if raw and b.forwards == 0:
            self.fault("raw-module-called", b.site, f)
        if self.ranks > 1 and sync_of_forward and b.synced is False:
            self.fault("no-sync-around-backward-only", b.site, f)

    def weighed(self, root: Tensor) -> tuple[Any, Weight, bool]:
        """The loss without the loss scale, where it is one number; what it was weighed with; whether it was scaled."""
        number = root.detach() if root.numel() == 1 else None
        for out, loss, weight in self.scaled:
            if out() is root:
                return (loss.reshape(()) if loss.numel() == 1 else None), weight, True
        weight = weigh(root, self.scale_tensor)
        scaled = weight.scaled > 0
        if number is not None and scaled and self.scale_tensor is not None:
            number = number / self.scale_tensor
        return (None if number is None else number.reshape(())), weight, scaled

    # clearing

    def on_zero_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        told = [f for f in self.followers if args and f.optimizer is args[0]]
        return self.clearing(told) if told else None

    def on_module_zero_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        """Of any module: which gradients it clears is seen afterwards."""
        return self.clearing(self.followers)

    def clearing(self, told: list[Follower]) -> After:
        where = site()
        for f in told:
            f.look()
            if f.new and not f.stepping:
                self.dropping(f, where)

        def after(result: Any, error: bool) -> None:
            for f in told:
                now = f.versions()
                if now != f.mark or not f.held:
                    f.clear(where)
                    f.mark = now

        return after

    def dropping(self, f: Follower, where: Site | None) -> None:
        """Gradients that no optimizer has used are about to be cleared: was it since they are not finite?"""
        output, new = self.outputs[f.index], f.new
        if not all(f.unmoved(b) for b in new):
            return
        output.numbers.measure(self.scale_in(f))
        norm = float(output.numbers.norm)
        total = total_loss(new)
        bad = norm - norm != 0 or (total is not None and float(total) - float(total) != 0)
        if not bad:
            output.numbers.begin()
            return
        locked = all(b.scaled and b.scaler_updates == self.scaler_updates for b in new) and f.stage != "stepped"
        if self.has_scaler and locked:
            self.fault("live-lock", where, f)
        self.attempted(f, True)

    # clipping

    def on_total_norm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.euclidean = float(args[1] if len(args) > 1 else kwargs.get("norm_type", 2.0)) == 2

    def on_clip_norm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        """parameters, max_norm, total_norm: what both `clip_grad_norm_` and `clip_grads_with_norm_` end with."""
        given = dict(zip(("parameters", "max_norm", "total_norm"), args, strict=False)) | kwargs
        params, bound, total = given["parameters"], float(given["max_norm"]), given["total_norm"]
        params = [params] if isinstance(params, Tensor) else params
        if bound == torch.inf or not isinstance(params, list):
            return None  # it is measured, and not clipped
        return self.clipping(params, bound, total)

    def on_group(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        """`clip_grad_value_` has no parts of its own: it is known by who asks for its gradients to be sorted."""
        caller = sys._getframe(1)
        while caller.f_code.co_filename != torch.nn.utils.clip_grad.__file__:
            if caller.f_back is None:
                return None
            caller = caller.f_back
        if caller.f_code.co_name != "clip_grad_value_":
            return None
        grads = {id(g) for g in args[0][0]}
        known = [p for f in self.followers for p in f.params if p.grad is not None and id(p.grad) in grads]
        if not grads and len(self.followers) == 1:
            known = self.followers[0].params
        self.clipping(known, None, None)
        for f in {id(f): f for p in known if (f := self.of.get(id(p)))}.values():
            f.clamped = True
        return None

    def clipping(self, params: list[Tensor], bound: float | None, total: Any) -> After | None:
        where = site()
        told = {f.index: f for p in params if (f := self.of.get(id(p))) is not None}
        for f in told.values():
            numbers = self.outputs[f.index].numbers
            f.look()
            self.found(f, rules.at_clip(f, where, self.has_scaler, self.forwards))
            f.clips.append(Clip(where, len(f.held)))
            self.outputs[f.index].clips = True
            if not f.new:
                continue
            whole = isinstance(total, Tensor) and not numbers.clipping and covers(f, params)
            known = total if whole and self.euclidean else None
            numbers.measure(self.scale_in(f), known)
            if whole and bound is not None:
                numbers.clipping = {"clip/bound": bound, "clip/total": total}
            else:
                numbers.clipping = {"clip/after": None}

        def after(result: Any, error: bool) -> None:
            for f in told.values():
                f.settle()

        return after

    # the scaler

    @property
    def has_scaler(self) -> bool:
        return self.scaler is not None and bool(self.scaler.is_enabled())

    @property
    def scale_tensor(self) -> Tensor | None:
        return getattr(self.scaler, "_scale", None) if self.scaler is not None else None

    def scale_now(self) -> Any:
        """The loss scale as it is; a device's is copied, since the scaler changes it in place."""
        scale = self.scale_tensor if self.has_scaler else None
        if scale is None:
            return 1.0
        return scale.item() if scale.device.type == "cpu" else scale.clone()

    def scale_in(self, f: Follower) -> Any:
        """What the gradients of an optimizer are still multiplied with, or None."""
        inside = f.held and not f.unscaled and all(b.scaled for b in f.held)
        return self.scale_now() if inside and self.has_scaler else None

    def on_scaler_scale(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        given = args[1] if len(args) > 1 else kwargs.get("outputs")
        if args[0] is not self.scaler or not self.has_scaler or not isinstance(given, Tensor):
            return None
        self.scale_calls += 1
        weight = weigh(given, self.scale_tensor)
        if weight.scaled or any(out() is given for out, _, _ in self.scaled):
            self.fault("loss-scaled-twice", site(), self.followers[0])

        def after(result: Any, error: bool) -> None:
            if not error:
                self.scaled = [s for s in self.scaled if s[0]() is not None][-16:]
                self.scaled.append((weakref.ref(result), given.detach(), weight))

        return after

    def on_scaler_unscale(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        f = self.scaled_by(args, kwargs)
        if f is None:
            return None
        f.look()
        self.found(f, rules.at_unscale(f, site()))

        def after(result: Any, error: bool) -> None:
            if not error:
                f.stage, f.unscaled, f.unscaled_at = "unscaled", True, len(f.held)
            f.settle()

        return after

    def on_scaler_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        f = self.scaled_by(args, kwargs)
        if f is None:
            return None
        if f.stage == "stepped":
            self.fault("update-missing", site(), f)
        if f.new and f.scale_calls == self.scale_calls:
            self.fault("loss-not-scaled", f.new[0].site, f)
        f.scale_calls = self.scale_calls
        self.scaling, before = f, f.attempts

        def after(result: Any, error: bool) -> None:
            self.scaling = None
            if error:
                return
            f.stage = "stepped"
            if f.attempts == before:  # the optimizer was not called
                self.outputs[f.index].numbers.finish(self.scale_now())
                self.outputs[f.index].numbers.measure(self.scale_in(f))
                self.judge_step(f, site(), False)
                self.attempted(f, True)

        return after

    def on_scaler_update(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        if args[0] is not self.scaler or not self.has_scaler:
            return None

        def after(result: Any, error: bool) -> None:
            self.scaler_updates += 1
            for f in self.followers:
                f.stage = "ready"

        return after

    def scaled_by(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Follower | None:
        given = args[1] if len(args) > 1 else kwargs.get("optimizer")
        if args[0] is not self.scaler or not self.has_scaler:
            return None
        given = inner(given, "optimizer")
        return next((f for f in self.followers if f.optimizer is given), None)

    # the schedule

    def on_schedule(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not any(s is args[0] for s in self.schedules):
            return
        own = inner(getattr(args[0], "optimizer", None), "optimizer")
        for f in self.followers:
            if f.optimizer is own:
                where = site()
                self.found(f, rules.at_schedule(f, id(args[0]), where))
                f.scheduled.append(Move(id(args[0]), where, len(f.new)))

    # stepping

    def before_step(self, f: Follower, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        f.closure = any(callable(a) for a in args[1:]) or callable(kwargs.get("closure"))
        f.look()
        self.outputs[f.index].numbers.finish(self.scale_now())
        f.stepping, f.inside = f.closure, []
        if not f.closure:
            self.judge_and_measure(f)

    def after_step(self, f: Follower, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if f.closure:
            f.look()
            self.judge_and_measure(f)
            f.stepping = False
        self.attempted(f, self.held_back(f))

    def judge_and_measure(self, f: Follower) -> None:
        self.judge_step(f, site(), self.has_scaler and self.scaling is not f)
        numbers = self.outputs[f.index].numbers
        fused = getattr(f.optimizer, "grad_scale", None)
        numbers.measure(fused if isinstance(fused, Tensor) else self.scale_in(f), moves=not f.closure)
        if "clip/after" in numbers.clipping:
            numbers.clipping = {"clip/after": numbers.gradients().total}

    def judge_step(self, f: Follower, where: Site | None, direct: bool) -> None:
        self.found(f, rules.at_step(f, where, direct, self.ranks if self.ddp is not None else 1))

    def held_back(self, f: Follower) -> Any:
        """What a fused optimizer decides in its kernel: 1 where it has left the weights alone."""
        found = getattr(f.optimizer, "found_inf", None) if self.scaling is f else None
        return found.clone() if isinstance(found, Tensor) else False

    def attempted(self, f: Follower, skipped: Any) -> None:
        """An update was tried, or given up."""
        lr = f.optimizer.param_groups[0]["lr"]
        if isinstance(lr, Tensor):
            lr = lr.detach().clone()
        numbers = self.outputs[f.index].numbers
        loss = f.inside[0].loss if len(f.inside) > 1 else total_loss(f.new)
        if numbers.norm is not None:
            numbers.stepped(loss, lr, skipped)
        f.attempts += 1
        f.stepped()


class Hook:
    """A hook that can be copied and pickled with what it hangs on, and does nothing there."""

    def __init__(self, watch: Watch, name: str, thing: Any) -> None:
        self.call = (watch, name, thing)

    def __call__(self, *args: Any) -> None:
        watch, name, thing = self.call
        if isinstance(thing, Follower):
            watch.guarded(getattr(watch, name), thing, *args)
        elif args[0] is thing:
            watch.guarded(getattr(watch, name), *args)

    def __reduce__(self) -> tuple[Any, ...]:
        return silent, ()

    def __deepcopy__(self, memo: Any) -> Any:
        return nothing


def nothing(*args: Any) -> None:
    """A hook without effect."""


def silent() -> Any:
    return nothing


def several(given: Any) -> list[Any]:
    return [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]


def inner(given: Any, name: str) -> Any:
    """What a wrapper of Accelerate's holds."""
    return getattr(given, name, given) if type(given).__module__.startswith("accelerate.") else given


def clean(name: str) -> str:
    return name.replace("_orig_mod.", "").removeprefix("module.")


def covers(f: Follower, params: list[Tensor]) -> bool:
    """Whether these are all of an optimizer's parameters, and no others."""
    if len(params) != len(f.params):
        return False
    own = f.ids
    return all(id(p) in own for p in params)


def total_loss(backwards: list[Backward]) -> Any:
    """The sum of what backward was called on; None where one of them is not known."""
    losses = [b.loss for b in backwards]
    return None if not losses or any(v is None for v in losses) else sum(losses[1:], losses[0])
