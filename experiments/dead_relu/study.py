"""ReLUs that one large step switches off for good."""

from lab import Claim, Runs, Study, Sweep, check, cured, not_cured


def zero(runs: Runs):
    """Gradient norms of the first layer at the end: a sudden drop to zero."""
    ends = []
    for r in runs.where(remedy="none"):
        header, *records = r.layers
        ends.append(records[-1]["grad/layer"][header["names"].index("layers.0.linear.weight")] or 0.0)
    return check(max(ends) == 0, f"the first layer's gradient norm at the end: {max(ends):.2g}")


STUDY = Study(
    title="ReLUs that are off for every input",
    about="""A ReLU network under AdamW at a rate of 0.3: the first steps throw the biases so far down that the
units of a layer are zero for every sample. A ReLU that is off passes no gradient.""",
    sweeps=[
        Sweep(
            "main",
            ["-m", "+experiment=dead_relu", "+remedy=none,lower_lr_10,gelu,layer_norm,warmup,clip_norm", "seed=0,1,2"],
        )
    ],
    claims=[
        Claim(
            "gradients that drop to zero are dead neurons or a broken flow", "GM: What to watch in gradient logs", zero
        ),
        Claim("a lower rate keeps the units alive", "GM: Solution 2", cured("lower_lr_10")),
        Claim("GELU does not die", "GM: Solution 1", cured("gelu")),
        Claim("a warm-up stabilises", "GC: Additional Stabilization", cured("warmup")),
        Claim(
            "clipping does not help under Adam, which divides it out",
            "a common remedy",
            not_cured("clip_norm"),
        ),
    ],
)
