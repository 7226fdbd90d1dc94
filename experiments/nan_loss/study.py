"""Losses that leave the range of numbers, and their stable twins."""

from lab import Claim, Runs, Study, Sweep, check

KINDS = ("log", "division", "sqrt", "exp")


def unstable(runs: Runs, kind: str, remedy: str = "none") -> Runs:
    return runs.where(kind, remedy=remedy)


def twins(runs: Runs):
    found = {k: unstable(runs, k, "stable_loss") for k in KINDS}
    return check(
        all(t.all("healthy") for t in found.values()), "; ".join(f"{k}: {t.summary}" for k, t in found.items())
    )


def fail(kind: str, verdict: str):
    def measure(runs: Runs):
        return check(unstable(runs, kind).all(verdict), f"{unstable(runs, kind).summary}")

    return measure


def clipping(runs: Runs):
    """The relative error is clipped to begin with."""
    found = {k: unstable(runs, k, "none" if k == "division" else "clip_norm") for k in KINDS}
    return check(
        all(r.verdict != "healthy" for t in found.values() for r in t),
        "with clipping: " + "; ".join(f"{k}: {t.summary}" for k, t in found.items()),
    )


def first_loss(runs: Runs):
    """What the loss is at the failing update."""
    seen = {str(r.series("train/loss")[-1]) for r in unstable(runs, "log")}
    return check(seen == {"nan"}, f"the failing losses of log are {', '.join(sorted(seen))}: log(0) is minus infinity")


def negative(runs: Runs):
    """The sqrt of a square: is it the loss (a negative argument) or its gradient (at zero) that fails?"""
    losses = [r.series("train/loss")[-1] for r in unstable(runs, "sqrt")]
    return check(
        any(v != v for v in losses),
        f"failing losses {', '.join(f'{v:.3g}' for v in losses)}: finite, their gradient is not",
    )


def hundred(runs: Runs):
    largest = [r.diagnosis["evidence"].get("outputs", [0, 0])[1] for r in unstable(runs, "exp")]
    text = ", ".join(f"{v:.0f}" for v in largest)
    return check(min(largest) > 88, f"largest outputs at the failing update {text}; fp32's exp overflows beyond 88.7")


STUDY = Study(
    title="loss functions that fail by themselves",
    about="""Four textbook losses written naively (log of a softmax, a relative error, the root of a square, the
exponential of a Poisson rate) and the same written stably: `loss=unstable loss.kind=log loss.stable=true`.""",
    sweeps=[
        Sweep(k, ["-m", f"+experiment=nan_loss_{k}", "+remedy=none,stable_loss,clip_norm,lower_lr", "seed=0,1,2"])
        for k in KINDS
    ],
    claims=[
        Claim(
            "the log of a value that may be zero makes the loss fail before the backward pass",
            "GM: Numerical Issues",
            fail("log", "nan_loss"),
        ),
        Claim("a division by a value near zero does", "GM: Numerical Issues", fail("division", "nan_loss")),
        Claim("the exponential of large values does", "GM: Numerical Issues", fail("exp", "nan_loss")),
        Claim("exp overflows only beyond the range that fp32 has", "GM: Exp of large values", hundred),
        Claim("stable functions cure all of them", "GM: Solution 5", twins),
        Claim(
            "clipping does not: the loss is not finite before any gradient is",
            "GM: When Clipping Doesn't Fix NaN",
            clipping,
        ),
        Claim("the log of zero gives NaN", "GM: Common loss function issues", first_loss),
        Claim("the square under a root can get negative by rounding", "GM: Common loss function issues", negative),
    ],
)
