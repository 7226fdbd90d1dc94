"""Weights that begin far too large, or far too small."""

from lab import Claim, Runs, Study, Sweep, check, cured, not_cured


def large(runs: Runs):
    first = [r.series("grad/norm")[0] for r in runs.where("large", remedy="none")]
    found = runs.where("large", remedy="none")
    return check(found.all("exploding"), f"{found.summary}; the first gradient norm is {min(first):.2g} and more")


def small(runs: Runs):
    found = runs.where("small", remedy="none")
    return check(found.all("vanishing"), found.summary)


STUDY = Study(
    title="initial weights",
    about="""Twenty ReLU layers on scanned digits whose initial weights are three times too large, or ten times too
small, of what keeps the signal.""",
    sweeps=[
        Sweep(
            "large",
            ["-m", "+experiment=exploding_init", "+remedy=none,he_init,clip_norm,lower_lr_10,warmup", "seed=0,1,2"],
        ),
        Sweep(
            "small",
            ["-m", "+experiment=vanishing_init", "+remedy=none,he_init,batch_norm,higher_lr,adam", "seed=0,1,2"],
        ),
    ],
    claims=[
        Claim("weights too large make gradients explode", "GM: Causes of Exploding Gradients", large),
        Claim("weights too small make them vanish", "GM: Causes of Vanishing Gradients", small),
        Claim("He's initial weights cure the first", "GM: Solution 3", cured("he_init", "large")),
        Claim("and the second", "GM: Solution 2", cured("he_init", "small")),
        Claim(
            "clipping cures an explosion that is there from the start", "GM: Solution 1", cured("clip_norm", "large")
        ),
        Claim("a lower rate does not", "GM: Solution 2", not_cured("lower_lr_10", "large")),
        Claim(
            "batch norm keeps the scale of activations, whatever the weights",
            "GM: Solution 3",
            cured("batch_norm", "small"),
        ),
        Claim("a higher rate does not help against vanishing", "GM: Rationalizations", not_cured("higher_lr", "small")),
    ],
)
