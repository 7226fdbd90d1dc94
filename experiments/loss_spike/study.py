"""A loss that rises ten thousandfold near the end of a run, and comes back."""

from lab import Claim, Runs, Study, Sweep, check, cured


def lost(runs: Runs):
    found = runs.where(remedy="none")
    return check(not found.all("loss_spike_recovered"), f"{found.summary}; {found[0].diagnosis['sentence']}")


STUDY = Study(
    title="Adam where there is no noise",
    about="""A full-batch regression by Adam at 0.02: late in the run gradients are tiny, steps stay large, and in
the steepest direction each overshoots the last.""",
    sweeps=[
        Sweep(
            "main", ["-m", "+experiment=loss_spike", "+remedy=none,cosine,lower_lr,clip_norm,clip_tiny", "seed=0,1,2"]
        )
    ],
    claims=[
        Claim("a loss that spikes is lost", "GM: Recognizing Exploding Gradients", lost),
        Claim("spikes are fixed by clipping", "GM: When to use norm-based clipping", cured("clip_norm")),
        Claim("by clipping more aggressively", "GM: How to Choose max_norm", cured("clip_tiny")),
        Claim("by a lower rate", "GM: Solution 2", cured("lower_lr")),
        Claim("by a rate that decays", "GC: Additional Stabilization", cured("cosine")),
    ],
)
