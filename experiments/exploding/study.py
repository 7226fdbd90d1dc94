"""Exploding gradients through time: what cures them, and what people try."""

from lab import Claim, Runs, Study, Sweep, check, depends

REMEDIES = (
    "none,clip_norm,clip_value,clip_per_layer,autoclip,zclip,lower_lr,lower_lr_10,warmup,cosine,orthogonal_init,gated,"
    "smaller_batch,accumulate,adam,smaller_model,clip_tiny,clip_after_step,noise,[clip_norm,lower_lr],"
    "[clip_norm,lower_lr,orthogonal_init]"
)


WELL = ("healthy", "loss_spike_recovered")
"""A run that survives its spikes has not exploded."""


def verdict_of(remedy: str):
    def measure(runs: Runs):
        chosen = runs.where(remedy=remedy)
        return check(healthy(chosen), f"{remedy}: {chosen.summary}")

    return measure


def healthy(runs: Runs) -> bool:
    return bool(runs) and all(r.verdict in WELL for r in runs)


def unhealthy(remedy: str):
    def measure(runs: Runs):
        chosen = runs.where(remedy=remedy)
        return check(not any(r.verdict in WELL for r in chosen), f"{remedy}: {chosen.summary}")

    return measure


def still_fails(remedy: str):
    """Under each seed, or under some."""

    def measure(runs: Runs):
        chosen = runs.where(remedy=remedy)
        return depends([r.verdict not in WELL for r in chosen], f"{remedy}: {chosen.summary}")

    return measure


def may_fail(remedy: str):
    def measure(runs: Runs):
        chosen = runs.where(remedy=remedy)
        return check(any(r.verdict in ("exploding", "diverged") for r in chosen), f"{remedy}: {chosen.summary}")

    return measure


def over_100(runs: Runs):
    """Norms before clipping in healthy runs."""
    healthy = Runs(r for r in runs.where(remedy="clip_norm") if r.verdict == "healthy")
    share = healthy.median(lambda r: sum(n > 100 for n in r.norms) / len(r.norms)) if healthy else float("nan")
    largest = max((max(r.norms) for r in healthy), default=float("nan"))
    return check(
        share == 0 and largest <= 100, f"healthy runs with clipping: {share:.1%} of norms over 100, up to {largest:.3g}"
    )


def faster(runs: Runs):
    clip, low = runs.where(remedy="clip_norm"), runs.where(remedy="lower_lr_10")
    a, b = clip.median(lambda r: r.final), low.median(lambda r: r.final)
    return check(
        a < b, f"final loss, clipped at the full rate {a:.3g}, at a tenth of the rate without clipping {b:.3g}"
    )


def tiny(runs: Runs):
    a, b = (runs.where(remedy=name).median(lambda r: r.final) for name in ("clip_tiny", "clip_norm"))
    return check(a > 2 * b, f"final loss {a:.3g} with max_norm=0.01, {b:.3g} with 1")


def always(runs: Runs):
    share = runs.where(remedy="clip_tiny").median(lambda r: r.series("clip/fraction")[-1])
    return check(share > 0.95, f"max_norm=0.01 clips {share:.0%} of the updates")


def both(runs: Runs):
    a, b = (runs.where(remedy=name).median(lambda r: r.final) for name in ("[clip_norm,lower_lr]", "clip_norm"))
    return check(a < b, f"final loss {a:.3g} with both, {b:.3g} with clipping alone")


def priority(runs: Runs):
    order = ("clip_norm", "[clip_norm,lower_lr]", "[clip_norm,lower_lr,orthogonal_init]")
    losses = [runs.where(remedy=name).median(lambda r: r.final) for name in order]
    text = "final loss with clipping, a lower rate too, orthogonal weights too: "
    return check(losses == sorted(losses, reverse=True), text + ", ".join(f"{v:.3g}" for v in losses))


def value_slower(runs: Runs):
    a, b = (runs.where(remedy=name).median(lambda r: r.final) for name in ("clip_value", "clip_norm"))
    return check(a > b, f"final loss {a:.3g} by value, {b:.3g} by norm")


def max_norms(runs: Runs):
    found = {v: runs.where("max_norm", clip__max_norm=v) for v in ("0.5", "1.0", "5.0", "100.0")}
    text = "; ".join(f"{v}: {t.summary}, final loss {t.median(lambda r: r.final):.3g}" for v, t in found.items())
    best = min(found, key=lambda v: found[v].median(lambda r: r.final))
    return depends([healthy(found["0.5"]) and healthy(found["1.0"]), best in ("0.5", "1.0")], text)


def too_high(runs: Runs):
    high, right = (runs.where("max_norm", clip__max_norm=v) for v in ("100.0", "1.0"))
    text = f"max_norm=100: {high.summary}; 1: {right.summary}"
    return check(healthy(right) and not healthy(high), text)


STUDY = Study(
    title="an RNN without clipping",
    about="""A ReLU RNN of width 64 (orthogonal recurrent weights, gain 1.7) on the adding problem of 30 steps, SGD
at 0.03. Backpropagation through time multiplies by the recurrent weights once a step; one steep
update throws the weights to where they are steeper still. Answering with the mean has a loss of 0.167.""",
    sweeps=[
        Sweep("main", ["-m", "+experiment=exploding", f"+remedy={REMEDIES}", "seed=0,1,2"]),
        Sweep(
            "max_norm",
            [
                "-m",
                "+experiment=exploding",
                "clip=norm",
                "clip.max_norm=0.5,1.0,5.0,100.0",
                "seed=0,1,2",
                "expect=any",
            ],
        ),
    ],
    by=("remedy", "clip.max_norm"),
    claims=[
        Claim(
            "clipping the norm is the primary solution for exploding gradients",
            "GM: Exploding Gradients",
            verdict_of("clip_norm"),
        ),
        Claim(
            "a lower learning rate treats the symptom: a third of it still fails",
            "GM: Pitfall 1",
            still_fails("lower_lr"),
        ),
        Claim("a tenth of the rate may still diverge", "GM: Pitfall 1", may_fail("lower_lr_10")),
        Claim("clipping is usually better than a lower rate, which slows all learning", "GM: Solution 2", faster),
        Claim("clipping and a reasonable rate together are best", "GM: Solution 2", both),
        Claim("clipping after the step is useless", "GM: Pitfall 3", unhealthy("clip_after_step")),
        Claim("another optimizer does not fix exploding gradients", "GM: Rationalizations", unhealthy("adam")),
        Claim("a smaller model does not fix them", "GM: Rationalizations", unhealthy("smaller_model")),
        Claim(
            "proper initial weights fix what is wrong from the start", "GM: Solution 3", verdict_of("orthogonal_init")
        ),
        Claim(
            "each step of the order clipping, learning rate, initialisation lowers the loss",
            "GM: Systematic Approach to Exploding",
            priority,
        ),
        Claim("max_norm=0.01 makes learning very slow", "GM: Pitfall 10", tiny),
        Claim("max_norm too low shows in clipping at every update", "GM: How to Choose max_norm", always),
        Claim("norms over 100 are exploding gradients", "GM: What to look for", over_100),
        Claim("clipping by value converges more slowly than by norm", "GM: Pitfall 6", value_slower),
        Claim("0.5 and 1.0 are the values for RNNs", "GM: Typical values for max_norm", max_norms),
        Claim("max_norm too high leaves the instability", "GM: How to Choose max_norm", too_high),
        Claim("a gated cell does not explode where the plain one does", "GM: RNNs/LSTMs", verdict_of("gated")),
        Claim("a warm-up prevents the explosion", "GC: Additional Stabilization", verdict_of("warmup")),
    ],
    tried="""(2026-11-21) Gains up to 1.1 with rates up to 0.1 do not diverge at all (ReLU halves the variance of
each step: the edge is at a gain of 1.41). A gain of 1.5 with momentum 0.9 explodes too, but momentum makes ten of a
clipped step: in two of three seeds the loss of the clipped run rises sevenfold, and comes back. Without momentum a
gain of 1.5 needs a rate of 0.2 to explode under each of six seeds, and clipped runs then have single losses of up to
70 times the usual. An LSTM under SGD diverges at a rate of 1, but by its linear head, not through time.""",
)
