"""Clipping a network that does not need it, by norm, by value and tightly."""

from lab import Claim, Runs, Study, Sweep, check

SHORT = ["model=resnet", "optimizer=sgd", "optimizer.lr=0.05", "trainer.updates=60", "seed=0,1,2", "expect=any"]


def final(runs: Runs, sweep: str, **where) -> float:
    return runs.where(sweep, **where).median(lambda r: r.final)


def slower(runs: Runs):
    a, b = final(runs, "norm", clip__max_norm="1.0"), final(runs, "none")
    return check(a > 1.1 * b, f"final loss {a:.3g} clipped at 1.0, {b:.3g} without")


def stable(runs: Runs):
    plain = runs.where("none")
    return check(
        plain.all("healthy"), f"without clipping: {plain.summary}, largest norm {max(max(r.norms) for r in plain):.3g}"
    )


def tight(runs: Runs):
    a, b = final(runs, "norm", clip__max_norm="0.01"), final(runs, "none")
    return check(a > 1.5 * b, f"final loss {a:.3g} clipped at 0.01, {b:.3g} without")


def direction(runs: Runs):
    cosines = [v for r in runs.where("value") for v in r.series("pitfall/grad_cosine") if v == v]
    low = sorted(cosines)[len(cosines) // 2]
    return check(low < 0.99, f"cosine between the gradient clamped at 0.001 and the one clipped by norm: {low:.3g}")


STUDY = Study(
    title="clipping where it is not needed",
    about="""ResNet-18 with batch norm on scanned digits, SGD with momentum 0.9 at 0.05, 60 updates.""",
    sweeps=[
        Sweep("none", ["-m", *SHORT]),
        Sweep("norm", ["-m", *SHORT, "clip=norm", "clip.max_norm=1.0,0.01"]),
        Sweep(
            "value",
            ["-m", *SHORT[:-2], "+pitfall=value_clip", "pitfall.max_value=0.001", "clip=norm", "seed=0", "expect=any"],
        ),
    ],
    by=("clip.max_norm", "pitfall"),
    claims=[
        Claim("a ResNet is stable without clipping", "GM: Pitfall 7", stable),
        Claim("clipping it at 1.0 slows it down", "GM: Pitfall 7", slower),
        Claim("max_norm=0.01 limits learning", "GM: Pitfall 10", tight),
        Claim("clipping by value changes the direction", "GM: Pitfall 6", direction),
    ],
)
