"""Gradient accumulation: when it equals one large batch, and what its mistakes do."""

import math
import statistics

from lab import Claim, Runs, Study, Sweep, check, depends

DIGITS = ["model.layers=3", "model.activation=relu", "model.init=he", "trainer.epochs=3", "seed=0,1,2", "expect=any"]
TEXT = [
    *("model=transformer", "model.layers=1", "data=text", "data.variable_length=true", "data.length=64"),
    *("data.samples=1024", "data.test_samples=64", "trainer.epochs=2", "seed=0,1,2", "expect=any"),
]
SGD, ADAM = ["optimizer=sgd", "optimizer.lr=0.02", "optimizer.momentum=0"], ["optimizer=adam", "optimizer.lr=0.001"]
FOUR = ["data.batch_size=16", "accumulation.steps=4"]
WRONG = "unscaled_accumulation,gradients_scaled_by_hand,zero_grad_in_window,missing_zero_grad"
CLIP = ["clip=norm", "clip.max_norm=0.5"]
COSINE = ["schedule=warmup_cosine", "schedule.warmup=0"]
REMAINDER, EVERY = ["data.batch_size=32", "accumulation.steps=4"], ["pitfall.measure_every=1"]


def usual(runs: Runs, sweep: str, pitfall: str, name: str) -> float:
    values = [[v for v in r.series(f"pitfall/{name}") if math.isfinite(v)] for r in runs.where(sweep, pitfall=pitfall)]
    return statistics.median(statistics.median(v) for v in values if v) if any(values) else math.nan


def final(runs: Runs, sweep: str, **where) -> float:
    return runs.where(sweep, **where).median(lambda r: r.final)


def equals(runs: Runs):
    """Largest relative difference of the losses of the same seed and update."""
    worst = 0.0
    for seed in (0, 1, 2):
        (large,), (parts,) = (runs.where(name, seed=seed) for name in ("large", "accumulated"))
        pairs = zip(large.series("train/loss"), parts.series("train/loss"), strict=True)
        worst = max(worst, *(abs(a - b) / abs(a) for a, b in pairs))
    return check(
        worst < 1e-3, f"losses of 16 x 4 and of 64 differ by at most {worst:.1g} of themselves over three epochs"
    )


def tokens(runs: Runs):
    d = usual(runs, "tokens", "mean_of_means", "distance")
    return check(d < 1e-3, f"over unequal token counts the mean of means differs by {d:.1%} of the gradient's step")


def four_times(runs: Runs):
    ratio = usual(runs, "wrong_sgd", "unscaled_accumulation", "grad_ratio")
    return check(abs(ratio - 4) < 0.01, f"the gradient is {ratio:.4g} times the right one")


def hidden(runs: Runs):
    ratio = usual(runs, "clipped_sgd", "unscaled_accumulation", "grad_ratio")
    return check(abs(ratio - 4) < 0.1, f"clipped at 0.5, the gradient is {ratio:.3g} times the right one")


def like_lr(runs: Runs):
    sgd, adam = (usual(runs, f"wrong_{o}", "unscaled_accumulation", "update_ratio") for o in ("sgd", "adam"))
    return depends(
        [abs(sgd - 4) < 0.1, abs(adam - 4) < 0.1],
        f"updates are {sgd:.3g} times the right ones under SGD, {adam:.3g} under Adam",
    )


def worse(pitfall: str):
    def measure(runs: Runs):
        pairs = {o: (final(runs, f"wrong_{o}", pitfall=pitfall), final(runs, f"right_{o}")) for o in ("sgd", "adam")}
        text = "; ".join(f"{o}: final loss {a:.3g}, right {b:.3g}" for o, (a, b) in pairs.items())
        return depends([a > 1.1 * b for a, b in pairs.values()], text)

    return measure


def by_hand(runs: Runs):
    ratio, cosine = (usual(runs, "wrong_sgd", "gradients_scaled_by_hand", n) for n in ("grad_ratio", "grad_cosine"))
    return check(ratio < 0.9 or cosine < 0.99, f"the gradient is {ratio:.2g} times the right one, cosine {cosine:.2g}")


def last_only(runs: Runs):
    ratio, cosine = (usual(runs, "wrong_sgd", "zero_grad_in_window", n) for n in ("grad_ratio", "grad_cosine"))
    return check(cosine < 0.999, f"cosine {cosine:.2g} to the right gradient, {ratio:.2g} times its norm")


def grows(runs: Runs):
    early, late = [], []
    for r in runs.where("wrong_sgd", pitfall="missing_zero_grad"):
        ratios = [v for v in r.series("pitfall/grad_ratio") if math.isfinite(v)]
        early.append(ratios[1])
        late.append(max(ratios))
    first, last = statistics.median(early), statistics.median(late)
    return check(
        last > first > 1,
        f"the gradient is {first:.2g} times the right one at the second look, up to {last:.2g} times later",
    )


def each_micro_batch(runs: Runs):
    ratio, cosine = (usual(runs, "clip_each", "clip_each_micro_batch", n) for n in ("grad_ratio", "grad_cosine"))
    return check(
        cosine < 0.999 or abs(ratio - 1) > 0.01, f"the gradient is {ratio:.3g} times the right one, cosine {cosine:.4g}"
    )


def remainder(runs: Runs):
    chosen = runs.where("remainder", pitfall="remainder_underscaled")
    ratios = [v for r in chosen for v in r.series("pitfall/grad_ratio") if math.isfinite(v)]
    return check(
        min(ratios) > 0.99,
        f"the remainder's gradient is {min(ratios):.3g} times the right one: divided by the full number",
    )


def scheduler(runs: Runs):
    wrong, right = (runs.where(s) for s in ("schedule_wrong", "schedule_right"))
    a, b = (t.median(lambda r: r.series("lr")[len(r.series("lr")) // 2]) for t in (wrong, right))
    return check(
        a < 0.9 * b, f"halfway through the run the rate is {a:.2g} stepped per micro-batch, {b:.2g} per update"
    )


STUDY = Study(
    title="one large batch in parts",
    about="""The same runs with one batch of 64 and with four micro-batches of 16 (a ReLU MLP on scanned digits; a
transformer on text of unequal lengths), and with the mistakes that are made with accumulation; every tenth update
is compared with the right one from the same state.""",
    sweeps=[
        Sweep("large", ["-m", *DIGITS, *SGD, "data.batch_size=64"]),
        Sweep("accumulated", ["-m", *DIGITS, *SGD, *FOUR]),
        Sweep("right_sgd", ["-m", *DIGITS, *SGD, *FOUR]),
        Sweep("right_adam", ["-m", *DIGITS, *ADAM, *FOUR]),
        Sweep("wrong_sgd", ["-m", f"+pitfall={WRONG}", *DIGITS, *SGD, *FOUR]),
        Sweep("wrong_adam", ["-m", f"+pitfall={WRONG}", *DIGITS, *ADAM, *FOUR]),
        Sweep("clip_each", ["-m", "+pitfall=clip_each_micro_batch", *DIGITS, *SGD, *FOUR, *CLIP]),
        Sweep("clipped_sgd", ["-m", "+pitfall=unscaled_accumulation", *DIGITS, *SGD, *FOUR, *CLIP]),
        Sweep("tokens", ["-m", "+pitfall=mean_of_means", *TEXT, *FOUR]),
        Sweep("remainder", ["-m", "+pitfall=remainder_underscaled", *EVERY, *DIGITS, *SGD, *REMAINDER]),
        Sweep("schedule_wrong", ["-m", "+pitfall=schedule_per_micro_batch", *DIGITS, *SGD, *FOUR, *COSINE]),
        Sweep("schedule_right", ["-m", *DIGITS, *SGD, *FOUR, *COSINE]),
    ],
    by=("optimizer", "pitfall"),
    claims=[
        Claim("accumulation gives the same result as one large batch", "GM: Mathematical equivalence", equals),
        Claim(
            "it does whatever the batch holds: dividing by the number of steps is always right",
            "GM: Rationalizations",
            tokens,
        ),
        Claim("without scaling the loss the gradient is N times too large", "GM: Pitfall 2", four_times),
        Claim("without scaling it acts as a rate N times as high", "GM: Common Accumulation Mistakes", like_lr),
        Claim("so it is where gradients are clipped", "GM: Pitfall 2", hidden),
        Claim("without scaling the result is worse", "GM: Pitfall 2", worse("unscaled_accumulation")),
        Claim(
            "dividing the gradients by hand at every micro-batch is wrong", "GM: Common Accumulation Mistakes", by_hand
        ),
        Claim(
            "zero_grad inside the window leaves the last micro-batch alone",
            "GM: Common Accumulation Mistakes",
            last_only,
        ),
        Claim("without zero_grad gradients add up for ever", "GM: Pitfall 5", grows),
        Claim("without zero_grad training is worse", "GM: Pitfall 5", worse("missing_zero_grad")),
        Claim("clipping each micro-batch distorts the gradient", "GM: Accumulation with Clipping", each_micro_batch),
        Claim(
            "stepping on what is left at an epoch's end treats it rightly",
            "GM: Complete Accumulation Implementation",
            remainder,
        ),
        Claim(
            "a schedule stepped at every micro-batch runs N times too fast",
            "GM: Accumulation with Scheduling",
            scheduler,
        ),
    ],
)
