"""What works, and could be better."""

from __future__ import annotations

from gradlab.codes.code import Code

RIGHT = "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)"

CODES = (
    Code(
        "GL801",
        "clip-by-value",
        "advice",
        "clipping each element changes the gradient's direction; clip_grad_norm_ keeps it",
        "Measured: 0.72 of the gradient, in a direction whose cosine with the right one is 0.70 (README, "
        "pitfall value_clip).",
        "clip by norm",
        RIGHT,
    ),
    Code(
        "GL802",
        "max-norm-extreme",
        "advice",
        "an extreme max_norm: every update is cut to the same tiny length, or none ever is",
        "Measured: at 0.01 the gradient used is 0.009 of the right one (README, pitfall "
        "clip_too_tight). Look at the norms first.",
        "look at the norms, and clip those that stand out",
        RIGHT,
    ),
    Code(
        "GL803",
        "sequence-model-unclipped",
        "advice",
        "a recurrent network or a transformer is trained without clipping: one steep update can lose the run",
        "Measured: experiments/exploding, experiments/transformer; README, pitfall no_clip.",
        "clip by norm between backward and step",
        RIGHT,
    ),
    Code(
        "GL804",
        "resnet-clipped-tightly",
        "advice",
        "a ResNet is clipped at 1 or below: it trains well without, and its steps become shorter than they should be",
        "Measured: a loss of 2.20 instead of 0.40 (README, pitfall needless_clip).",
        "leave the clipping out, or choose a bound above the usual norm",
        "# no clipping, until the norms show that it is needed",
    ),
    Code(
        "GL805",
        "mean-of-means",
        "advice",
        "each micro-batch's mean over its own tokens, and the mean of these: tokens of short texts weigh more",
        "Measured: 0.05 of a move away from the right update; a loss of 3.33 instead of 3.10 under SGD "
        "(README, pitfall mean_of_means).",
        "sum over tokens, and divide by the number of tokens of the window",
        "loss = F.cross_entropy(logits, target, ignore_index=-100, reduction='sum') / tokens_of_the_window",
    ),
    Code(
        "GL806",
        "deep-saturating-stack",
        "advice",
        "a deep stack of sigmoid or tanh layers without normalisation: early gradients vanish",
        "Measured: twenty sigmoid layers, early gradients 10^16 times smaller than late ones (experiments/vanishing).",
        "use another activation, normalisation, or residual connections",
        "nn.Sequential(nn.Linear(100, 100), nn.LayerNorm(100), nn.ReLU(), ...)",
    ),
    Code(
        "GL807",
        "gradients-never-looked-at",
        "advice",
        "nothing looks at the gradients: no norm, no clipping, no scaler",
        "Measured: README, pitfall no_monitoring.",
        "measure the norm now and then",
        "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float('inf'))  # measures, and cuts nothing",
        default=False,
    ),
    Code(
        "GL810",
        "trainer-clips-by-value",
        "advice",
        "the trainer clips by value, which changes the gradient's direction",
        "Measured: 0.72 of the gradient, in a direction whose cosine with the right one is 0.70 (README, "
        "pitfall value_clip).",
        "clip by norm",
        "Trainer(gradient_clip_val=1.0, gradient_clip_algorithm='norm')",
    ),
    Code(
        "GL811",
        "trainer-max-norm-extreme",
        "advice",
        "the trainer's bound on the norm is extreme: every update is cut to the same tiny length, or none ever is",
        "Measured: at 0.01 the gradient used is 0.009 of the right one (README, pitfall clip_too_tight).",
        "look at the norms, and clip those that stand out",
        "TrainingArguments(max_grad_norm=1.0, ...)",
    ),
    Code(
        "GL812",
        "two-precisions",
        "error",
        "fp16 and bf16 are both asked for: the trainer refuses, for there is one precision",
        "The arguments are checked when they are made, so that the script ends there.",
        "ask for one",
        "TrainingArguments(bf16=True, ...)",
    ),
    Code(
        "GL813",
        "trainer-clips-manual-optimization",
        "error",
        "the trainer is told to clip or to accumulate, but the module optimizes by hand: Lightning refuses to train",
        "With automatic_optimization = False the clipping and the windows are the module's own.",
        "clip and accumulate in training_step",
        """
def training_step(self, batch, i):
    ...
    self.clip_gradients(optimizer, gradient_clip_val=1.0)
    optimizer.step()
""".strip(),
    ),
)
