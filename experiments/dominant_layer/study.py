"""One layer's gradient decides by how much all others are clipped."""

from lab import Claim, Runs, Study, Sweep, check, cured


def faster(runs: Runs):
    a, b = (runs.where(remedy=n).median(lambda r: r.final) for n in ("clip_per_layer", "none"))
    return check(a < 0.8 * b, f"final loss {a:.3g} clipped by layer, {b:.3g} clipped as a whole")


def harder(runs: Runs):
    """Whether one threshold serves both ways: per-layer clipping at other thresholds."""
    found = {v: runs.where("thresholds", clip__max_norm=v).median(lambda r: r.final) for v in ("0.1", "1.0", "10.0")}
    spread = max(found.values()) / min(found.values())
    return check(spread > 1.5, "final loss by max_norm: " + ", ".join(f"{k}: {v:.3g}" for k, v in found.items()))


STUDY = Study(
    title="clipping as a whole and by layer",
    about="""An MLP of fifty residual layers: the head's gradient is 93% of the squared norm, and clipping the whole
is decided by it alone.""",
    sweeps=[
        Sweep(
            "main", ["-m", "+experiment=dominant_layer", "+remedy=none,clip_per_layer,looser_clip,adam", "seed=0,1,2"]
        ),
        Sweep(
            "thresholds",
            [
                "-m",
                "+experiment=dominant_layer",
                "clip=per_layer",
                "clip.max_norm=0.1,1.0,10.0",
                "seed=0,1,2",
                "expect=any",
            ],
        ),
    ],
    by=("remedy", "clip.max_norm"),
    claims=[
        Claim(
            "where one layer dominates, clipping by layer is better than as a whole",
            "GM: Per-Layer Gradient Clipping",
            faster,
        ),
        Claim("clipping by layer cures it", "GM: Per-Layer Gradient Clipping", cured("clip_per_layer")),
        Claim("clipping by layer is harder to tune", "GM: Per-Layer Gradient Clipping", harder),
    ],
)
