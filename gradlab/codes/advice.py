"""Settings that work and could be better, and settings that contradict each other."""

from __future__ import annotations

from gradlab.codes.code import Code

RIGHT = "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)"
VALUE_CLIP = "the gradient is 0.72 of the right one, and its cosine with it 0.70."
TIGHT_CLIP = "with max_norm=0.01 the gradient is 0.009 of the right one."

CODES = (
    Code(
        code="GL801",
        name="clip-by-value",
        severity="advice",
        message="clipping by value changes the gradient's direction; clip_grad_norm_ keeps it",
        why="Only elements above the bound shrink.",
        measured=VALUE_CLIP,
        pitfall="value_clip",
        wrong="torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)",
        fix="clip by norm",
        example=RIGHT,
    ),
    Code(
        code="GL802",
        name="max-norm-extreme",
        severity="advice",
        message="max_norm is extreme: every gradient is clipped to the same tiny norm, or none ever is",
        why="Then max_norm only changes the learning rate, or nothing. Measure the norms before choosing it.",
        measured=TIGHT_CLIP,
        pitfall="clip_too_tight",
        wrong="torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.01)",
        fix="measure the norms, and clip those that stand out",
        example=RIGHT,
    ),
    Code(
        code="GL803",
        name="sequence-model-unclipped",
        severity="advice",
        message="a recurrent network or a transformer is trained without clipping: one large gradient can ruin the run",
        why="Their loss has steep cliffs, at which the gradient is many times its usual size.",
        measured="experiments/exploding and experiments/transformer.",
        pitfall="no_clip",
        wrong="""
model = nn.LSTM(8, 8)
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x)[0], y).backward()
    optimizer.step()
""".strip(),
        fix="clip by norm between backward and step",
        example=RIGHT,
        found_by=("audit",),
    ),
    Code(
        code="GL804",
        name="resnet-clipped-tightly",
        severity="advice",
        message="a ResNet is clipped at 1 or below: it trains well without, and its steps become too short",
        why="Its usual gradient norms are above 1, so that every update is clipped.",
        measured="a loss of 2.20 instead of 0.40.",
        pitfall="needless_clip",
        wrong="""
from torchvision.models import resnet18

model = resnet18()
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
""".strip(),
        fix="remove the clipping, or choose a max_norm above the usual norm",
        example="# no clipping, until the norms show that it is needed",
    ),
    Code(
        code="GL805",
        name="mean-of-means",
        severity="advice",
        message="the loss is a mean of means over micro-batches: tokens of short micro-batches weigh more",
        why="Each micro-batch is averaged over its own number of tokens, and these averages count equally.",
        measured="the update is 0.05 of its length away from the right one; with SGD a loss of 3.33 instead of 3.10.",
        pitfall="mean_of_means",
        wrong="""
for i, (x, y) in enumerate(loader):
    window = min(n, len(loader) - i // n * n)
    (F.cross_entropy(model(x), y, ignore_index=-100) / window).backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""".strip(),
        fix="sum over tokens, and divide by the number of tokens of the window",
        example="loss = F.cross_entropy(logits, target, ignore_index=-100, reduction='sum') / tokens_of_the_window",
    ),
    Code(
        code="GL806",
        name="deep-saturating-stack",
        severity="advice",
        message="a deep stack of sigmoid or tanh layers without normalization: early gradients vanish",
        why="The derivative of sigmoid is at most 0.25, and backpropagation multiplies one per layer.",
        measured="with twenty sigmoid layers, early gradients are 10^16 times smaller than late ones "
        "(experiments/vanishing).",
        wrong="""
model = nn.Sequential(
    nn.Linear(9, 9), nn.Sigmoid(), nn.Linear(9, 9), nn.Sigmoid(), nn.Linear(9, 9), nn.Sigmoid(),
    nn.Linear(9, 9), nn.Sigmoid(), nn.Linear(9, 9), nn.Sigmoid(), nn.Linear(9, 9), nn.Sigmoid(),
    nn.Linear(9, 9), nn.Sigmoid(), nn.Linear(9, 9), nn.Sigmoid(), nn.Linear(9, 9), nn.Sigmoid(),
)
""".strip(),
        fix="use another activation, normalization, or residual connections",
        example="nn.Sequential(nn.Linear(100, 100), nn.LayerNorm(100), nn.ReLU(), ...)",
        found_by=("audit",),
    ),
    Code(
        code="GL807",
        name="gradients-never-looked-at",
        severity="advice",
        message="nothing monitors the gradients: no norm, no clipping, no scaler",
        why="A failure is noticed only when the loss shows it.",
        pitfall="no_monitoring",
        wrong="""
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
""".strip(),
        fix="measure the norm now and then",
        example="norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float('inf'))  # measures, and clips "
        "nothing",
        found_by=("audit",),
        default=False,
    ),
    Code(
        code="GL810",
        name="trainer-clips-by-value",
        severity="advice",
        message="the trainer clips by value, which changes the gradient's direction",
        why="Only elements above the bound shrink.",
        measured=VALUE_CLIP,
        pitfall="value_clip",
        wrong="Trainer(gradient_clip_val=1.0, gradient_clip_algorithm='value')",
        fix="clip by norm",
        example="Trainer(gradient_clip_val=1.0, gradient_clip_algorithm='norm')",
        found_by=("audit",),
    ),
    Code(
        code="GL811",
        name="trainer-max-norm-extreme",
        severity="advice",
        message="the trainer's max_norm is extreme: every gradient is clipped to the same tiny norm, or none ever is",
        why="Then max_norm only changes the learning rate, or nothing. Measure the norms before choosing it.",
        measured=TIGHT_CLIP,
        pitfall="clip_too_tight",
        wrong="TrainingArguments(max_grad_norm=0.001)",
        fix="measure the norms, and clip those that stand out",
        example="TrainingArguments(max_grad_norm=1.0, ...)",
        found_by=("audit",),
    ),
    Code(
        code="GL812",
        name="two-precisions",
        severity="error",
        message="fp16 and bf16 are both requested: the trainer raises an error",
        why="The arguments are checked when they are created, so that the script ends there.",
        wrong="TrainingArguments(fp16=True, bf16=True)",
        fix="request one of them",
        example="TrainingArguments(bf16=True, ...)",
        found_by=("audit",),
    ),
    Code(
        code="GL813",
        name="trainer-clips-manual-optimization",
        severity="error",
        message="the trainer is configured to clip or accumulate, but the module optimizes manually: Lightning raises",
        why="With automatic_optimization = False, clipping and accumulation are up to the module.",
        wrong="""
class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, i):
        ...

Trainer(gradient_clip_val=1.0).fit(Module())
""".strip(),
        fix="clip and accumulate in training_step",
        example="""
def training_step(self, batch, i):
    ...
    self.clip_gradients(optimizer, gradient_clip_val=1.0)
    optimizer.step()
""".strip(),
        found_by=("audit",),
    ),
)
