"""What to try for a verdict, as overrides that can be pasted."""

from __future__ import annotations

from gradlab.diagnosis.finding import Diagnosis


def remedies(diagnosis: Diagnosis, lr: float) -> list[tuple[str, str]]:
    """(override, why), in the order in which to try them."""
    lower = f"optimizer.lr={lr / 3:.1g}"
    return {
        "scale_collapse": [
            (lower, "weights, and with them activations, grow more slowly"),
            ("precision=bf16", "fp32's range: 65504 is no limit"),
        ],
        "exploding": [
            ("clip=norm clip.max_norm=1.0", "no update may be larger than the usual ones"),
            (lower, "smaller updates, all of them"),
        ],
        "nan_gradient": [(lower, "smaller updates"), ("clip=norm clip.max_norm=1.0", "bounded updates")],
        "diverged": [(lower, "smaller updates"), ("schedule=warmup", "small updates while the model is young")],
        "vanishing": [
            ("model.activation=relu model.init=he", "an activation whose slope is 1, at the variance that it needs"),
            ("model.norm=layer", "layers that keep their scale"),
            ("model.residual=true", "a path on which gradients are not multiplied"),
        ],
    }.get(diagnosis.verdict, [])
