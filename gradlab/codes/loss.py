"""Losses that become non-finite, that are kept with their graphs, and that are given something else than they take."""

from __future__ import annotations

from gradlab.codes.code import Code

CODES = (
    Code(
        code="GL601",
        name="log-of-zero",
        severity="warning",
        message="log of a prediction that may be 0: the loss becomes infinite, and its gradient NaN",
        why="The logarithm of 0 is -inf. An eps inside the log only moves the pole if the value may be negative.",
        measured="experiments/nan_loss.",
        wrong="loss = -(y * torch.log(torch.softmax(model(x), dim=-1))).sum()",
        fix="compute the loss from logits, or keep its argument away from 0",
        example="loss = F.cross_entropy(logits, target)  # or F.binary_cross_entropy_with_logits, or "
        "torch.log(p.clamp_min(1e-8))",
        found_by=("audit",),
    ),
    Code(
        code="GL602",
        name="division-by-prediction",
        severity="warning",
        message="division by a prediction that may be near 0: the loss and its gradient explode",
        why="An eps alone does not help: pred + eps has its pole at -eps; use pred.abs() + eps, or clamp.",
        measured="experiments/nan_loss.",
        wrong="loss = ((pred - target) / pred).pow(2).mean()",
        fix="keep the divisor away from 0",
        example="loss = ((pred - target) / (pred.abs() + 1e-8)).pow(2).mean()",
        found_by=("audit",),
    ),
    Code(
        code="GL603",
        name="sqrt-at-zero",
        severity="warning",
        message="sqrt of a square or of a difference: at 0 its gradient is NaN",
        why="The derivative of sqrt at 0 is infinite, and infinity times 0 is NaN. That of norm() there is 0.",
        measured="experiments/nan_loss.",
        wrong="loss = torch.sqrt((pred - target).pow(2)).mean()",
        fix="add a small number under the root",
        example="distance = (diff.pow(2) + 1e-12).sqrt()  # or diff.abs()",
        found_by=("audit",),
    ),
    Code(
        code="GL604",
        name="exp-of-unbounded",
        severity="warning",
        message="exp of an unbounded output: it overflows from 88.7 in fp32, and from 11.1 in fp16",
        why="Functions such as logsumexp, softmax and cross_entropy subtract the largest value first.",
        measured="experiments/nan_loss.",
        wrong="loss = torch.log(torch.exp(logits).sum(dim=-1)).mean()",
        fix="use a function that subtracts the largest value first",
        example="loss = torch.logsumexp(logits, dim=-1).mean()  # or F.cross_entropy(logits, target)",
        found_by=("audit",),
    ),
    Code(
        code="GL605",
        name="loss-kept-with-graph",
        severity="warning",
        message="a loss is kept with its graph: memory grows with every batch",
        why="The graph of the loss stays in memory; so does everything that a backward pass would need, if none has "
        "freed it. loss.item() waits for the device, loss.detach() does not.",
        measured="with eight small layers, 25 kB of graph stay per batch.",
        wrong="""
total = 0
for x, y in loader:
    optimizer.zero_grad()
    out = criterion(model(x), y)
    out.backward()
    optimizer.step()
    total += out
""".strip(),
        fix="keep loss.detach() or loss.item()",
        example="total += loss.detach()",
    ),
    Code(
        code="GL606",
        name="rmse-at-zero",
        severity="advice",
        message="sqrt of a mean of squares: where every error is 0 (padding, a perfect fit) its gradient is NaN",
        why="The derivative of sqrt at 0 is infinite; a mean of squares is 0 only if all errors are.",
        measured="experiments/nan_loss, for a single square.",
        wrong="loss = torch.sqrt(F.mse_loss(pred, target))",
        fix="add a small number under the root, or use the mean itself: its minimum is the same",
        example="loss = torch.sqrt(F.mse_loss(pred, target) + 1e-12)",
        found_by=("audit",),
    ),
    Code(
        code="GL607",
        name="mean-over-no-target",
        severity="advice",
        message="the loss is divided by its number of targets, which may be 0: loss and gradient are NaN then",
        why="A batch in which everything is padding or masked has 0/0 for its loss; one such batch is enough to "
        "lose the weights.",
        wrong="""
for x, y, mask in loader:
    optimizer.zero_grad()
    each = F.cross_entropy(model(x), y, reduction='none')
    loss = (each * mask).sum() / mask.sum()
    loss.backward()
    optimizer.step()
""".strip(),
        fix="keep the divisor at 1 or more",
        example="""
for x, y, mask in loader:
    optimizer.zero_grad()
    each = F.cross_entropy(model(x), y, reduction='none')
    loss = (each * mask).sum() / mask.sum().clamp(min=1)
    loss.backward()
    optimizer.step()
""".strip(),
        found_by=("audit",),
    ),
    Code(
        code="GL608",
        name="loss-broadcast",
        severity="error",
        message="two sides of a loss broadcast: each element of one meets every element of the other",
        why="A column (B, 1) against a row (B,) gives (B, B): each prediction meets every target of the batch, or each "
        "logarithm every advantage. What is learnt is the mean of the targets, or next to nothing.",
        wrong="""
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    (model(x) - y.float()).square().mean().backward()
    optimizer.step()
""".strip(),
        fix="give both one shape: model(x).squeeze(-1), or y.unsqueeze(-1)",
        example="""
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    (model(x).squeeze(-1) - y.float()).square().mean().backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL609",
        name="loss-input",
        severity="warning",
        message="a loss function is given something else than it takes",
        why="A softmax or sigmoid is part of cross_entropy and of the losses with logits: after another one no output "
        "is certain, and the gradient is small. nll_loss and kl_div take logarithms: of other numbers they measure "
        "nothing. A ReLU or sigmoid cannot give values outside of its range.",
        wrong="""
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x).softmax(-1), y).backward()
    optimizer.step()
""".strip(),
        fix="give cross_entropy and losses with logits the logits, nll_loss, kl_div and ctc_loss log_softmax over the "
        "classes, a regression outputs of the range of its targets, and each prediction its own label",
        example="""
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""".strip(),
    ),
    Code(
        code="GL610",
        name="not-finite",
        severity="warning",
        message="the first numbers that are not finite are made here, and the gradient of the update is lost with them",
        why="What is not finite in one operation comes out of all that follow, and of the whole graph in the backward "
        "pass: after one step all weights are lost. Of a root of 0 the value is finite, and the gradient is not.",
        wrong="""
for x, y in loader:
    optimizer.zero_grad()
    out = model(x)
    distances = (out[:, None] - out).square().sum(-1).sqrt()
    (F.cross_entropy(out, y) + distances.mean()).backward()
    optimizer.step()
""".strip(),
        fix="keep its argument away from where it has no value, or no gradient",
        example="""
for x, y in loader:
    optimizer.zero_grad()
    out = model(x)
    distances = ((out[:, None] - out).square().sum(-1) + 1e-12).sqrt()
    (F.cross_entropy(out, y) + distances.mean()).backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL611",
        name="mixed-reductions",
        severity="warning",
        message="one term of the loss is a mean over all elements of the batch, another a sum over them",
        why="Each element of the sum weighs as much as all those of the mean together: a VAE whose reconstruction is a "
        "mean and whose divergence is a sum learns to make the divergence zero, and nothing else.",
        wrong="""
for x, y in loader:
    optimizer.zero_grad()
    out = model(x.repeat(32, 1))
    loss = F.mse_loss(out, torch.zeros_like(out)) + out.tanh().square().sum()
    loss.backward()
    optimizer.step()
""".strip(),
        fix="reduce both terms in the same way, as by sums over features and a mean over samples, and weigh them on "
        "purpose",
        example="""
for x, y in loader:
    optimizer.zero_grad()
    out = model(x.repeat(32, 1))
    loss = F.mse_loss(out, torch.zeros_like(out)) + out.tanh().square().mean()
    loss.backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL612",
        name="entropy-penalised",
        severity="warning",
        message="the policy's entropy is added to its loss, which makes it small: exploration ends",
        why="A loss is made small. An entropy that is to stay high is subtracted from it: with the other sign the "
        "policy becomes certain of whatever it tried first.",
        wrong="""
for x, rewards in loader:
    optimizer.zero_grad()
    policy = torch.distributions.Categorical(logits=model(x))
    advantage = rewards - rewards.float().mean()
    loss = -(policy.log_prob(policy.sample()) * advantage).mean() + 0.01 * policy.entropy().mean()
    loss.backward()
    optimizer.step()
""".strip(),
        fix="subtract the entropy from the loss",
        example="""
for x, rewards in loader:
    optimizer.zero_grad()
    policy = torch.distributions.Categorical(logits=model(x))
    advantage = rewards - rewards.float().mean()
    loss = -(policy.log_prob(policy.sample()) * advantage).mean() - 0.01 * policy.entropy().mean()
    loss.backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL613",
        name="target-in-sight",
        severity="warning",
        message="the prediction of each token sees the token that is its target: copying it is all that is learnt",
        why="The loss goes to zero while nothing can be generated: there the next token is not known yet. Attention "
        "over all steps needs a causal mask, and the target of a step is the token after it.",
        wrong="""
model = nn.ModuleList([nn.Embedding(50, 16), nn.TransformerEncoderLayer(16, 2, 32), nn.Linear(16, 50)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    tokens = (x * 10).long().clamp(-25, 24) + 25
    optimizer.zero_grad()
    states = model[1](model[0](tokens).transpose(0, 1)).transpose(0, 1)
    logits = model[2](states)
    criterion(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
""".strip(),
        fix="give attention a causal mask, and the loss the tokens shifted by one step",
        example="""
model = nn.ModuleList([nn.Embedding(50, 16), nn.TransformerEncoderLayer(16, 2, 32), nn.Linear(16, 50)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    tokens = (x * 10).long().clamp(-25, 24) + 25
    optimizer.zero_grad()
    mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
    states = model[1](model[0](tokens).transpose(0, 1), mask, is_causal=True).transpose(0, 1)
    logits = model[2](states)
    criterion(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
)
