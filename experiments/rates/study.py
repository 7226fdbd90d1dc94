"""Rates and bounds that are far too low or too high, in a network with nothing else wrong."""

from lab import Claim, Runs, Study, Sweep, check, cured


def tight(runs: Runs):
    found = runs.where("overclipped", remedy="none")
    text = f"{found.summary}; {found.median(lambda r: r.series('clip/fraction')[-1]):.0%} of the updates are clipped"
    return check(found.all("overclipped"), text)


def low(runs: Runs):
    found = runs.where("stalled", remedy="none")
    return check(found.all("stalled"), found.summary)


def high(runs: Runs):
    found = runs.where("diverged", remedy="none")
    return check(
        any(r.diagnosis["outcome"]["status"] == "failed" for r in found), f"{found.summary}: finite to the end"
    )


STUDY = Study(
    title="too low and too high",
    about="""Small networks on scanned digits: a bound on the norm of a thousandth of what is usual, a rate of 1e-7,
and a rate ten times too high under a bounded activation.""",
    sweeps=[
        Sweep("overclipped", ["-m", "+experiment=overclipped", "+remedy=none,looser_clip,adam", "seed=0,1,2"]),
        Sweep("stalled", ["-m", "+experiment=stalled", "+remedy=none,higher_lr", "seed=0,1,2"]),
        Sweep("diverged", ["-m", "+experiment=diverged", "+remedy=none,lower_lr_10,clip_norm,clip_tiny", "seed=0,1,2"]),
    ],
    claims=[
        Claim("a bound that always acts makes learning very slow", "GM: Signs your max_norm is too low", tight),
        Claim("a looser one lets it learn", "GM: Pitfall 10", cured("looser_clip", "overclipped")),
        Claim("a loss that stays constant means that the rate is too low", "GC: Related Issues", low),
        Claim("ten times the rate fixes it", "GC: Related Issues", cured("higher_lr", "stalled")),
        Claim("a rate that is too high shows as NaN", "GC: Related Issues", high),
        Claim("a tenth of the rate fixes it", "GC: Related Issues", cured("lower_lr_10", "diverged")),
        Claim("clipping at 1 fixes it", "GM: Solution 1", cured("clip_norm", "diverged")),
    ],
)
