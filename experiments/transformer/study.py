"""A transformer with and without clipping, warm-up and norms in the right place."""

from lab import Claim, Runs, Study, Sweep, check, cured

SHORT = ["model=transformer", "trainer.updates=200", "seed=0,1,2", "expect=any"]


def needed(runs: Runs):
    """Whether a pre-norm transformer fails without clipping."""
    plain = runs.where("plain", clip="none")
    return check(not plain.all("healthy"), f"pre-norm at its default rate, without clipping: {plain.summary}")


def harmless(runs: Runs):
    a, b = (runs.where("plain", clip=c).median(lambda r: r.final) for c in ("norm", "none"))
    return check(a < 1.05 * b, f"final loss {a:.3g} with clip=norm at 1.0, {b:.3g} without")


def range_of_norms(runs: Runs):
    share = runs.where("plain", clip="none").median(lambda r: sum(0.1 <= n <= 10 for n in r.norms) / len(r.norms))
    return check(share > 0.95, f"{share:.0%} of the norms of healthy runs lie within 0.1 and 10")


def updates(runs: Runs):
    """Gradient over parameter norm in healthy runs, and update over parameter norm."""

    def usual(key):
        return runs.where("ratios").median(
            lambda r: sorted(v for ln in r.layers[1:] for v in ln.get(key, []) if v)[
                len([v for ln in r.layers[1:] for v in ln.get(key, []) if v]) // 2
            ]
        )

    grad, update = usual("grad/ratio"), usual("update/ratio")
    return check(
        1e-3 <= grad <= 1e-2, f"healthy runs: gradient/parameter norm {grad:.2g}, update/parameter norm {update:.2g}"
    )


def too_large(runs: Runs):
    """The first updates of healthy runs."""
    first = runs.where("ratios").median(lambda r: max(v for v in r.layers[1]["update/ratio"] if v is not None))
    return check(first <= 0.1, f"the largest ratio of a parameter in the first update of healthy runs is {first:.2g}")


STUDY = Study(
    title="transformers and clipping",
    about="""Byte-level transformers of four blocks: post-norm under SGD at 0.5 (the experiment), and pre-norm under
AdamW at its default rate with and without clipping, 200 updates each.""",
    sweeps=[
        Sweep(
            "post_norm",
            [
                "-m",
                "+experiment=exploding_transformer",
                "+remedy=none,clip_norm,warmup,pre_norm,lower_lr,agc",
                "seed=0,1,2",
            ],
        ),
        Sweep("plain", ["-m", *SHORT, "clip=none,norm"]),
        Sweep("ratios", ["-m", *SHORT, "monitor=full"]),
    ],
    by=("remedy", "clip"),
    claims=[
        Claim("clipping cures an exploding transformer", "GM: Exploding Gradients", cured("clip_norm", "post_norm")),
        Claim("a warm-up cures it", "GC: Additional Stabilization", cured("warmup", "post_norm")),
        Claim("pre-norm, the modern standard, cures it", "GM: Solution 5", cured("pre_norm", "post_norm")),
        Claim("a lower rate does", "GM: Solution 2", cured("lower_lr", "post_norm")),
        Claim("transformers almost always need clipping", "GM: When to use norm-based clipping", needed),
        Claim("clipping at 1.0 costs a transformer nothing in quality", "GM: Typical values for max_norm", harmless),
        Claim("healthy norms are 0.1 to 10", "GM: What to look for", range_of_norms),
        Claim("a healthy ratio of gradient to parameter norm is 0.001 to 0.01", "GM: Gradient Monitoring", updates),
        Claim("ratios over 0.1 mean updates that are too large", "GM: What to watch in gradient logs", too_large),
    ],
)
