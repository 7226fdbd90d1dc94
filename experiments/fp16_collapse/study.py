"""The collapse of the loss scale in fine-tuning: what fixes it, and what a healthy scale looks like."""

import math

from lab import Claim, Runs, Study, Sweep, check, cured

REMEDIES = "none,lower_lr,lower_lr_10,clip_norm,longer_warmup,cosine,smaller_batch,bf16,fp32"


def epochs(runs: Runs):
    fell = [r.diagnosis["evidence"].get("scale_fell_in_epoch", 0) for r in runs.where(remedy="none")]
    done = [r.evals for r in runs.where(remedy="none")]
    improved = [e[1] < e[0] for e in done if len(e) > 1]
    return check(
        set(fell) == {2} and all(improved),
        f"the scale began to fall in epochs {fell}; the first epoch improved in {sum(improved)} of {len(fell)}",
    )


def message(runs: Runs):
    found = {str(r.diagnosis["outcome"]["error"]).partition(":")[0] for r in runs.where(remedy="none")}
    return check(found == {"grad_scale is too small, exiting"}, "; ".join(sorted(found)))


def below(runs: Runs):
    lows = [min(r.series("amp/scale")) for r in runs if r.verdict == "healthy"]
    failing = [min(r.series("amp/scale")) for r in runs.where(remedy="none")]
    return check(
        max(failing) < 1e-5 <= min(lows),
        f"lowest scale of runs that fail {max(failing):.2g}, of healthy ones {min(lows):.2g}",
    )


def slower(runs: Runs):
    a, b = (runs.where(remedy=n).median(lambda r: r.eval_loss) for n in ("lower_lr_10", "lower_lr"))
    return check(a > b, f"eval loss {a:.4g} at a tenth of the rate, {b:.4g} at a third")


def in_any_type(runs: Runs):
    """Whether the rate fails in a wider type too."""
    gained = [r.evals[0] - r.evals[-1] for r in runs.where(remedy="bf16")]
    lost = not all(g > 0 and math.isfinite(g) for g in gained)
    return check(lost, f"in bf16 the same rate improves the eval loss by {min(gained):.3g} and more")


STUDY = Study(
    title="fine-tuning in fp16 at the rate of the pre-training",
    about="""A byte-level transformer of one block, pretrained in fp32 and fine-tuned in fp16 on a small set with
the rate and the warm-up of its pre-training. In epoch 2 an MLP's output passes 65504; no loss scale helps, and it
halves until the run ends. Ten rates and three seeds are in [rates.md](rates.md).""",
    sweeps=[Sweep("main", ["-m", "+experiment=fp16_collapse", f"+remedy={REMEDIES}", "seed=0,1,2"])],
    figure=("train/loss", "amp/scale"),
    claims=[
        Claim("the first epoch completes, the second fails", "GC: When This Occurs", epochs),
        Claim("it ends with `grad_scale is too small, exiting`", "GC: Exact Error Message", message),
        Claim("a learning rate 3 times lower fixes it", "GC: Primary Fix", cured("lower_lr")),
        Claim("10 times lower fixes it", "GC: Primary Fix", cured("lower_lr_10")),
        Claim("10 times lower learns more slowly than 3 times", "GC: Learning Rate Guidelines", slower),
        Claim("a smaller batch fixes it", "GC: Secondary Fix", cured("smaller_batch")),
        Claim("clipping at 1.0 fixes it", "GC: Additional Stabilization", cured("clip_norm")),
        Claim("a longer warm-up fixes it", "GC: Additional Stabilization", cured("longer_warmup")),
        Claim("a cosine schedule fixes it", "GC: Additional Stabilization", cured("cosine")),
        Claim("turning fp16 off fixes it", "GC: If Reducing LR Doesn't Work", cured("fp32")),
        Claim("the gradients are unstable: the rate fails in any type", "GC: Root Cause", in_any_type),
        Claim("a scale below 1e-10 means that the rate is too high", "GC: Warning signs", below),
    ],
)
