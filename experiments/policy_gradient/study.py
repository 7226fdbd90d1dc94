"""REINFORCE with and without clipping, and how far its gradients' norms range beside those of supervised runs."""

from __future__ import annotations

import statistics

from lab import Claim, Measured, Run, Runs, Study, Sweep, check, depends

RL = "+experiment=policy_gradient"
CLIP = ("clip=norm", "clip.max_norm=0.5", "expect=any")
SUPERVISED = ("-m", "seed=0,1,2", "optimizer=sgd", "data.batch_size=8", "data.samples=960", "trainer.epochs=1")


def steps(run: Run) -> float:
    """Mean number of steps that the pole is balanced in the last 20 updates; at most 500."""
    return -statistics.fmean(run.series("train/loss")[-20:])


def spread(run: Run) -> float:
    """Range of the gradient's norm: its 95th percentile over its 5th."""
    percents = statistics.quantiles(run.norms, n=20)
    return percents[-1] / percents[0] if percents[0] else float("inf")


def verdicts(runs: Runs) -> str:
    values = sorted(map(steps, runs))
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in runs.verdicts().items())
    return f"{values[len(values) // 2]:.0f} steps ({values[0]:.0f} to {values[-1]:.0f}; {verdicts})"


def explodes(runs: Runs) -> Measured:
    plain = runs.where("plain")
    norms, ends = [max(r.norms) for r in plain], [statistics.median(r.norms[-20:]) for r in plain]
    text = f"without clipping the norm passes 100 in {sum(n > 100 for n in norms)} of {len(plain)} runs "
    text += (
        f"(largest {min(norms):.0f} to {max(norms):.0f}), then falls (at the end {min(ends):.1g} to {max(ends):.1g}): "
    )
    text += f"the policy has collapsed, {verdicts(plain)}"
    return check(all(n > 100 for n in norms) and plain.all("diverged"), text)


def clipping_cures(runs: Runs) -> Measured:
    plain, clipped = runs.where("plain"), runs.where("clipped")
    text = f"{verdicts(plain)} without, {verdicts(clipped)} with it"
    return check(min(map(steps, clipped)) > 5 * max(map(steps, plain)) and clipped.all("healthy"), text)


def lower_rate(runs: Runs) -> Measured:
    lower = {lr: runs.where("rates", optimizer__lr=lr) for lr in ("0.001", "1e-05")}
    clipped = runs.where("clipped")
    text = "; ".join(f"{lr}: {verdicts(found)}" for lr, found in lower.items())
    good = max(found.median(steps) for found in lower.values()) >= 0.8 * clipped.median(steps)
    return check(good, f"without clipping {text}; clipped at 0.01: {verdicts(clipped)}")


def always_clipping(runs: Runs) -> Measured:
    clipped = runs.where("clipped")
    fraction = min(r.series("clip/fraction")[-1] for r in clipped)
    left = clipped.median(lambda r: statistics.median(r.series("clip/coefficient")))
    text = f"{fraction:.0%} of the updates are clipped, usually to {left:.1g} of the gradient, and {verdicts(clipped)}"
    return check(fraction < 0.95 or clipped.median(steps) < 100, text)


def above_a_hundred(runs: Runs) -> Measured:
    healthy = Runs(r for r in [*runs.where("clipped"), *runs.where("normalised")] if r.verdict == "healthy")
    beyond = [r for r in healthy if statistics.median(r.norms) > 100]
    text = f"in {len(beyond)} of {len(healthy)} healthy runs the usual norm is above 100 (up to "
    text += (
        f"{max(statistics.median(r.norms) for r in healthy):.0f}): the loss is the number of steps, and so is its scale"
    )
    return check(not beyond, text)


def more_unstable(runs: Runs) -> Measured:
    raw, scaled = runs.where("clipped").median(spread), runs.where("normalised").median(spread)
    others = {name: runs.where(name).median(spread) for name in ("digits", "lstm")}
    text = f"95th over 5th percentile of the norm: {raw:.0f} with plain returns, {scaled:.0f} with standardised ones; "
    text += ", ".join(f"{name} {value:.0f}" for name, value in others.items())
    return depends([value > max(others.values()) for value in (raw, scaled)], text)


def adam(runs: Runs) -> Measured:
    plain, clipped = ({r.overrides["seed"]: steps(r) for r in runs.where(name)} for name in ("adam", "adam_clipped"))
    better = [clipped[seed] > plain[seed] for seed in plain]
    without, clips = (verdicts(runs.where(name)) for name in ("adam", "adam_clipped"))
    text = f"Adam at 0.03: {without} without, {clips} with max_norm 0.5; "
    return depends(better, text + f"better with it on {sum(better)} of {len(better)} seeds")


STUDY = Study(
    title="REINFORCE balances a pole",
    about="""
REINFORCE on CartPole: 120 updates of 8 episodes, an MLP of 64 units, SGD with momentum 0.9 at 0.01. The loss is minus
the number of steps that the pole stays up (at most 500; a random policy's about 20), its gradient the policy gradient
with the returns from each step on as they are; `normalised` standardises them (`loss.normalise`, at 0.001).
""",
    sweeps=[
        Sweep("plain", ["-m", RL, "seed=0,1,2,3,4"]),
        Sweep("clipped", ["-m", RL, "seed=0,1,2,3,4", *CLIP]),
        Sweep("adam", ["-m", RL, "seed=0,1,2,3,4", "optimizer=adam", "optimizer.lr=0.03", "expect=any"]),
        Sweep("adam_clipped", ["-m", RL, "seed=0,1,2,3,4", "optimizer=adam", "optimizer.lr=0.03", *CLIP]),
        Sweep("normalised", ["-m", RL, "seed=0,1,2", "loss.normalise=true", "optimizer.lr=0.001", "expect=any"]),
        Sweep("rates", ["-m", RL, "seed=0,1,2", "optimizer.lr=0.001,1e-05", "expect=any"]),
        Sweep("digits", [*SUPERVISED, "model.layers=1", "model.activation=tanh", "data=digits"]),
        Sweep("lstm", [*SUPERVISED, "model=lstm", "data=adding"]),
    ],
    claims=[
        Claim("Policy gradients often explode", "GM: When to Use This Skill", explodes),
        Claim("max_norm 0.5 for reinforcement learning", "GM: Typical values for max_norm", clipping_cures),
        Claim(
            "Gradients of reinforcement learning are particularly unstable",
            "GM: Typical values for max_norm",
            more_unstable,
        ),
        Claim("A lower learning rate does as well as clipping", "GM: Solution 2: Lower Learning Rate", lower_rate),
        Claim(
            "Clipping at every update means that max_norm is too low",
            "GM: Signs your max_norm is too low",
            always_clipping,
        ),
        Claim("A total norm above 100 is exploding", "GM: What to look for", above_a_hundred),
        Claim("Under Adam, too, clipping to 0.5 helps", "GM: When to use norm-based clipping", adam),
    ],
    by=("optimizer", "optimizer.lr", "clip"),
    shown=("plain", "clipped", "normalised", "rates"),
    conclusion="""
The gradient of each step is weighted by the return that follows it, so that the norm grows much faster than the return.
Steps that are right for a beginner overshoot once the policy has learnt a little: it becomes certain of one action,
falls after nine steps, and as a certain policy explores nothing, its gradient is zero. Clipping makes all steps equally
long, and acts on all of them. Standardised returns take the growth away, and then a lower rate does without clipping.
""",
)
