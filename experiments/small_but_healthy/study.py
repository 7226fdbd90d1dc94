"""Small gradients that are no fault."""

import statistics

from lab import Claim, Runs, Study, Sweep, check, cured


def threshold(runs: Runs):
    norm = runs.where(remedy="none").median(lambda r: statistics.median(r.norms))
    fell = runs.where(remedy="none").median(lambda r: r.series("train/loss")[0] / r.final)
    return check(fell < 2, f"the norm is {norm:.2g} all along, and the loss falls by a factor of {fell:.3g}")


def unit(runs: Runs):
    a, b = runs.where("unit", seed=0), runs.where("main", remedy="none", seed=0)
    ratio = statistics.median(a[0].norms) / statistics.median(b[0].norms)
    same = (a[0].series("train/loss")[0] / a[0].final) / (b[0].series("train/loss")[0] / b[0].final)
    return check(
        ratio > 1e6 and 0.5 < same < 2, f"norms {ratio:.2g} times as large, the fall of the loss {same:.3g} times"
    )


STUDY = Study(
    title="small is not vanishing",
    about="""A regression in small units: gradients are of norm 1e-7 from the first update to the last, Adam divides
that out, and the loss falls by a factor of 100.""",
    sweeps=[
        Sweep("main", ["-m", "+experiment=small_but_healthy", "+remedy=none", "seed=0,1,2"]),
        Sweep(
            "unit", ["-m", "+experiment=small_but_healthy", "loss.unit=1", "optimizer.eps=1e-8", "expect=any", "seed=0"]
        ),
    ],
    by=("remedy", "loss.unit"),
    claims=[
        Claim("norms below 1e-6 are vanishing gradients", "GM: Rationalizations", threshold),
        Claim("small gradients are fine while the model learns", "GM: When Small Gradients Are OK", cured("none")),
        Claim("the absolute size depends on the scale of the loss alone", "GM: Key insight", unit),
    ],
)
