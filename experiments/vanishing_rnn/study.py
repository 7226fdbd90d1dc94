"""A gradient that is lost on its way through time."""

from lab import Claim, Runs, Study, Sweep, check, cured, not_cured


def through_time(runs: Runs):
    ratios = [r.diagnosis["evidence"].get("late_to_early_time", 0.0) for r in runs.where(remedy="none")]
    return check(
        min(ratios) > 1000,
        f"the gradient at the last time steps is {min(ratios):.2g} times that at the first, and more",
    )


def no_layer(runs: Runs):
    """Whether the norms of parameters show it, which is where the advice text to look."""
    norms = runs.where(remedy="none").median(lambda r: sorted(r.norms)[len(r.norms) // 2])
    return check(norms < 1e-6, f"the norm of the whole gradient is {norms:.2g}")


STUDY = Study(
    title="a plain recurrent network over forty steps",
    about="""The adding problem: two marked numbers of a sequence are to be added. A constant answer has a loss of
0.167. A tanh RNN of 64 units under Adam at 0.005, clipped at 1.""",
    sweeps=[
        Sweep(
            "main",
            [
                "-m",
                "+experiment=vanishing_rnn",
                "+remedy=none,gated,orthogonal_init,higher_lr,[orthogonal_init,relu]",
                "seed=0,1,2",
            ],
        )
    ],
    claims=[
        Claim(
            "backpropagation through time multiplies gradients across time steps",
            "GM: Architecture-specific issues",
            through_time,
        ),
        Claim("vanishing shows as a total norm below 1e-6", "GM: Recognizing Vanishing Gradients", no_layer),
        Claim("a gated cell learns it", "common practice", cured("gated")),
        Claim("orthogonal recurrent weights learn it", "common practice", cured("orthogonal_init")),
        Claim("a higher rate does not", "GM: Rationalizations", not_cured("higher_lr")),
    ],
)
