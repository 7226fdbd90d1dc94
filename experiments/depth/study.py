"""Fifty layers with and without paths around them."""

from lab import Claim, Runs, Study, Sweep, check, cured


def resnet(runs: Runs):
    a, b = (runs.where("resnet", remedy=n) for n in ("none", "residual"))
    losses = [runs.median(lambda r: r.final) for runs in (a, b)]
    text = f"without: {a.summary}, final loss {losses[0]:.3g}; with: {b.summary}, {losses[1]:.3g}"
    return check(a.all("vanishing") and b.all("healthy"), text)


def fundamental(runs: Runs):
    a, b = (runs.where("mlp", remedy=n) for n in ("none", "residual"))
    return check(a.all("vanishing") and b.all("healthy"), f"without: {a.summary}; with: {b.summary}")


STUDY = Study(
    title="residual connections and depth",
    about="""An MLP of fifty ReLU layers with layer norm, and a ResNet-34 without normalisation, each with and
without paths around its layers, on scanned digits.""",
    sweeps=[
        Sweep(
            "mlp",
            [
                "-m",
                "+experiment=deep_without_residual",
                "+remedy=none,residual,batch_norm,gelu,lower_lr,higher_lr",
                "seed=0,1,2",
            ],
        ),
        Sweep("resnet", ["-m", "+experiment=deep_resnet", "+remedy=none,residual", "seed=0,1,2"]),
    ],
    claims=[
        Claim("residual connections are fundamental beyond 50 layers", "GM: Rationalizations", fundamental),
        Claim("without them a deep ResNet does not train", "GM: Solution 4", resnet),
        Claim(
            "batch norm is critical beyond 20 layers, and enough", "GM: Rationalizations", cured("batch_norm", "mlp")
        ),
        Claim("layer norm is enough", "GM: Solution 5", cured("none", "mlp")),
    ],
)
