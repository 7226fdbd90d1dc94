"""Gradients that fp16 flushes to zero, and the loss scale that keeps them."""

from lab import Claim, Runs, Study, Sweep, check, cured


def flushed(runs: Runs):
    shares = [r.diagnosis["evidence"].get("flushed", 0.0) for r in runs.where(remedy="none")]
    return check(min(shares) > 0.3, f"{min(shares):.0%} of the gradient's elements that fp32 keeps are zero in fp16")


def same_as_fp32(runs: Runs):
    a, b = (runs.where(remedy=n).median(lambda r: r.final) for n in ("loss_scaling", "fp32"))
    return check(abs(a - b) < 0.1 * b, f"final loss {a:.3g} with the loss scale, {b:.3g} in fp32")


STUDY = Study(
    title="fp16 without a loss scale",
    about="""A regression whose gradients have a norm of 1e-7, in fp16: below 3e-8, half of its smallest number,
everything rounds to zero.""",
    sweeps=[
        Sweep(
            "main", ["-m", "+experiment=fp16_underflow", "+remedy=none,loss_scaling,bf16,fp32,higher_lr", "seed=0,1,2"]
        )
    ],
    claims=[
        Claim("small gradients underflow in fp16", "GM: Why unscale before clipping", flushed),
        Claim("a loss scale prevents the underflow", "GM: Why unscale before clipping", cured("loss_scaling")),
        Claim("with it fp16 trains as fp32 does", "GM: Mixed Precision Training Integration", same_as_fp32),
        Claim("turning fp16 off fixes it", "GC: If Reducing LR Doesn't Work", cured("fp32")),
    ],
)
