"""What mistakes around the loss scale do to the true gradient and to the outcome, under SGD and Adam."""

import math
import statistics

from lab import Claim, Runs, Study, Sweep, check, depends

PITFALLS, OVERFLOWING = "clip_before_unscale,unscale_twice", "step_past_scaler,live_lock"
TOO_HIGH = "precision.init_scale=1e9"  # so that the first updates overflow, as they do in any run that begins so
COMMON = [
    *("model.layers=3", "model.activation=relu", "model.init=he", "precision=fp16", "clip=norm", "clip.max_norm=0.1"),
    *("trainer.epochs=3", "seed=0,1,2", "expect=any", "trainer.evaluate_every=3"),
]
OPTIMIZERS = {"sgd": "optimizer.lr=0.05", "adamw": "optimizer.lr=0.001"}


def sweeps() -> list[Sweep]:
    found = []
    for optimizer, rate in OPTIMIZERS.items():
        base = [f"optimizer={optimizer}", rate, *COMMON]
        found.append(Sweep(f"right_{optimizer}", ["-m", *base]))
        found.append(Sweep(f"wrong_{optimizer}", ["-m", f"+pitfall={PITFALLS}", *base]))
        found.append(Sweep(f"right_over_{optimizer}", ["-m", *base, TOO_HIGH]))
        found.append(Sweep(f"over_{optimizer}", ["-m", f"+pitfall={OVERFLOWING}", *base, TOO_HIGH]))
    return found


def usual(runs: Runs, optimizer: str, pitfall: str, name: str) -> float:
    """Median of a measurement over updates, then over seeds."""
    chosen = runs.where(f"wrong_{optimizer}", pitfall=pitfall)
    values = [[v for v in r.series(f"pitfall/{name}") if math.isfinite(v)] for r in chosen]
    return statistics.median(statistics.median(v) for v in values if v) if any(values) else math.nan


def final(runs: Runs, sweep: str, **where) -> float:
    return runs.where(sweep, **where).median(lambda r: r.final)


def nothing(runs: Runs):
    """Whether clipping scaled gradients leaves them as they would be unclipped."""
    ratio = usual(runs, "sgd", "clip_before_unscale", "grad_ratio")
    return check(
        ratio > 1, f"the gradient used is {ratio:.2g} of the rightly clipped one: the threshold is max_norm/scale"
    )


def both_optimizers(runs: Runs):
    sgd, adam = (usual(runs, o, "clip_before_unscale", "update_ratio") for o in OPTIMIZERS)
    text = f"an update is {sgd:.2g} of the right one under SGD, {adam:.2g} under AdamW"
    return depends([sgd < 0.5 or sgd > 2, adam < 0.5 or adam > 2], text)


def diverges(runs: Runs):
    wrong = {o: runs.where(f"wrong_{o}", pitfall="clip_before_unscale") for o in OPTIMIZERS}
    text = "; ".join(
        f"{o}: {w.summary}, final loss {w.median(lambda r: r.final):.3g}, right {final(runs, f'right_{o}'):.3g}"
        for o, w in wrong.items()
    )
    return depends([any(r.verdict in ("diverged", "exploding") for r in w) for w in wrong.values()], text)


def too_small(runs: Runs):
    ratio = usual(runs, "sgd", "unscale_twice", "grad_ratio")
    return check(ratio < 0.01, f"the gradient used is {ratio:.2g} of the right one")


def slow(runs: Runs):
    pairs = {o: (final(runs, f"wrong_{o}", pitfall="unscale_twice"), final(runs, f"right_{o}")) for o in OPTIMIZERS}
    text = "; ".join(f"{o}: final loss {a:.3g}, right {b:.3g}" for o, (a, b) in pairs.items())
    return depends([a > 1.1 * b for a, b in pairs.values()], text)


def bypass(runs: Runs):
    found = {o: runs.where(f"over_{o}", pitfall="step_past_scaler") for o in OPTIMIZERS}
    return depends(
        [not any(r.verdict == "healthy" for r in t) for t in found.values()],
        "; ".join(f"{o}: {t.summary}" for o, t in found.items()),
    )


def locked(runs: Runs):
    found = {o: runs.where(f"over_{o}", pitfall="live_lock") for o in OPTIMIZERS}
    text = "; ".join(f"{o}: {t.summary}" for o, t in found.items())
    return depends([t.all("scale_livelock") for t in found.values()], text)


def healthy_scale(runs: Runs):
    names = [f"right_{over}{o}" for over in ("", "over_") for o in OPTIMIZERS]
    scales = [r.series("amp/scale") for name in names for r in runs.where(name)]
    low, high = min(map(min, scales)), max(map(max, scales))
    return check(high <= 1e-3, f"scales of healthy runs: {low:.3g} to {high:.3g}")


def recovers(runs: Runs):
    found = Runs(r for o in OPTIMIZERS for r in runs.where(f"right_over_{o}"))
    skipped = found.median(lambda r: r.diagnosis["evidence"]["skipped"])
    return check(found.all("healthy"), f"from 1e9: {found.summary}, {skipped:g} updates skipped")


def together(runs: Runs):
    right = Runs(r for o in OPTIMIZERS for r in runs.where(f"right_{o}"))
    return check(right.all("healthy"), f"unscaled before clipping: {right.summary}")


STUDY = Study(
    title="mistakes around the loss scale",
    about="""A ReLU MLP of three layers on scanned digits in fp16 with a dynamic loss scale, clipped at 0.1; the
right update, and four wrong ones in its place, of which every tenth is compared with the right update from the same
state.""",
    sweeps=sweeps(),
    by=("optimizer", "pitfall"),
    claims=[
        Claim(
            "clipping before unscaling does nothing: the effective threshold is the scale, 65536",
            "GM: Why unscale before clipping",
            nothing,
        ),
        Claim("clipping before unscaling changes the updates by far", "GM: Pitfall 4", both_optimizers),
        Claim("clipping before unscaling makes training diverge", "GM: Pitfall 4", diverges),
        Claim("unscaling twice makes gradients too small", "GM: Common AMP Mistakes", too_small),
        Claim("unscaling twice slows training down", "GM: Common AMP Mistakes", slow),
        Claim("stepping past the scaler lets infinities into the weights", "GM: Common AMP Mistakes", bypass),
        Claim("a healthy scale is between 1e-8 and 1e-3", "GC: Warning signs", healthy_scale),
        Claim("a scale that begins too high comes down, and the run is healthy", "GM: The flow", recovers),
        Claim("mixed precision and clipping work together", "GM: Rationalizations", together),
        Claim("a guard that skips step and update never recovers", "what a guard against NaN often does", locked),
    ],
)
