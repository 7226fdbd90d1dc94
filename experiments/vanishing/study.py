"""Vanishing gradients in a deep sigmoid MLP: which of the usual fixes cure, alone and in their order."""

import itertools
import statistics

from lab import Claim, Run, Runs, Study, Sweep, check, depends

REMEDIES = (
    "none,relu,gelu,he_init,xavier_init,orthogonal_init,batch_norm,layer_norm,residual,higher_lr,adam,smaller_model,"
    "clip_norm,clip_tiny,[relu,he_init],[relu,he_init,layer_norm],[relu,he_init,layer_norm,residual]"
)
ORDER = ("none", "relu", "[relu,he_init]", "[relu,he_init,layer_norm]", "[relu,he_init,layer_norm,residual]")


def ratio(run: Run) -> float:
    """Late over early, the median over the records."""
    header, *records = run.layers
    weights = [i for i, name in enumerate(header["names"]) if name.endswith("weight")]
    tenth = max(1, len(weights) // 10)
    found = []
    for record in records:
        norms = [record["grad/layer"][i] or 0.0 for i in weights]
        early, late = statistics.fmean(norms[:tenth]), statistics.fmean(norms[-tenth:])
        found.append(late / early if early else float("inf"))
    return statistics.median(found)


def cures(*names: str):
    def measure(runs: Runs):
        chosen = {name: runs.where(remedy=name) for name in names}
        return depends(
            [c.all("healthy") for c in chosen.values()], "; ".join(f"{n}: {c.summary}" for n, c in chosen.items())
        )

    return measure


def fails(*names: str):
    def measure(runs: Runs):
        chosen = {name: runs.where(remedy=name) for name in names}
        found = "; ".join(f"{n}: {c.summary}" for n, c in chosen.items())
        return depends([not any(r.verdict == "healthy" for r in c) for c in chosen.values()], found)

    return measure


def direction(runs: Runs):
    r = runs.where(remedy="none").median(ratio)
    return check(
        r < 1, f"the last layers' gradients are {r:.2g} times the first ones': it is the early ones that vanish"
    )


def thousand(runs: Runs):
    stuck, healthy = runs.where(remedy="none"), Runs(r for r in runs if r.verdict == "healthy")
    low, high = min(map(ratio, stuck)), max(map(ratio, healthy))
    return check(low > 1000 > high, f"stuck runs {low:.2g} and more; healthy runs at most {high:.3g}")


def priority(runs: Runs):
    losses = [runs.where(remedy=name).median(lambda r: r.final) for name in ORDER]
    text = " > ".join(f"{loss:.3g}" for loss in losses)
    return check(all(a >= b for a, b in itertools.pairwise(losses)), f"final loss as they are added: {text}")


def impact(runs: Runs):
    alone = {
        n: runs.where(remedy=n).median(lambda r: r.final)
        for n in ("relu", "he_init", "batch_norm", "layer_norm", "residual")
    }
    best = min(alone, key=alone.__getitem__)
    return check(best == "relu", "final loss alone: " + ", ".join(f"{n} {v:.3g}" for n, v in alone.items()))


def tiny_norm(runs: Runs):
    norm = runs.where(remedy="none").median(lambda r: statistics.median(r.norms))
    return check(norm < 1e-6, f"the norm of the whole gradient is {norm:.2g} in the stuck runs: that of the last layer")


STUDY = Study(
    title="twenty sigmoid layers",
    about="""Each sigmoid multiplies the gradient on its way back by a slope of at most 1/4, so that the first
layers of twenty get next to nothing and the loss stays at log(10) = 2.303. Scanned digits, SGD with momentum 0.9 at
0.01, ten epochs.""",
    sweeps=[Sweep("main", ["-m", "+experiment=vanishing", f"+remedy={REMEDIES}", "seed=0,1,2"])],
    claims=[
        Claim(
            "early layers' gradients are the large ones and shrink with depth (the table of layer1 to layer20)",
            "GM: Recognizing Vanishing Gradients",
            direction,
        ),
        Claim(
            "a late/early ratio over 1000 separates vanishing from healthy runs",
            "GM: When Small Gradients Are OK",
            thousand,
        ),
        Claim("vanishing shows as a total norm below 1e-6", "GM: What to look for", tiny_norm),
        Claim("ReLU or GELU alone has the highest impact", "GM: Systematic Approach to Vanishing", impact),
        Claim("ReLU or GELU in place of sigmoid lets it train", "GM: Solution 1", cures("relu", "gelu")),
        Claim(
            "proper initial weights let it train", "GM: Solution 2", cures("he_init", "xavier_init", "orthogonal_init")
        ),
        Claim("batch norm lets it train", "GM: Solution 3", cures("batch_norm")),
        Claim("residual connections let it train", "GM: Solution 4", cures("residual")),
        Claim("layer norm lets it train", "GM: Solution 5", cures("layer_norm")),
        Claim(
            "activation and initialisation together let it train",
            "GM: Systematic Approach to Vanishing",
            cures("[relu,he_init]"),
        ),
        Claim(
            "each step of the order activation, initialisation, normalisation, residuals lowers the loss",
            "GM: Systematic Approach to Vanishing",
            priority,
        ),
        Claim("a higher learning rate alone does not fix it", "GM: Rationalizations", fails("higher_lr")),
        Claim("another optimizer does not fix it", "GM: Rationalizations", fails("adam")),
        Claim("clipping does not fix it", "GM: Common Gradient Pitfalls", fails("clip_norm", "clip_tiny")),
        Claim("fewer layers do: depth is a cause", "GM: Causes of Vanishing Gradients", cures("smaller_model")),
    ],
)
