"""Losses that are computed, and mean something else than what is to be learnt."""

from __future__ import annotations

from gradlab.codes.code import Code

CODES = (
    Code(
        code="GL614",
        name="padding-mask-inverted",
        severity="error",
        message="the padding mask is the wrong way around: it hides the tokens, and leaves the padding",
        why="PyTorch's key_padding_mask is True where there is padding. The other way around attention sees the "
        "padding alone, and NaN where there is none.",
        wrong="""
model = nn.ModuleList([nn.Embedding(50, 16, padding_idx=0), nn.TransformerEncoderLayer(16, 2, 32), nn.Linear(16, 4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    tokens = (x * 10).long().clamp(0, 49)
    optimizer.zero_grad()
    padding = tokens == 0
    states = model[1](model[0](tokens).transpose(0, 1), src_key_padding_mask=~padding)
    criterion(model[2](states.mean(0)), y).backward()
    optimizer.step()
""".strip(),
        fix="give attention a mask that is True at the padding, and a loss one that is 1 everywhere else",
        example="""
model = nn.ModuleList([nn.Embedding(50, 16, padding_idx=0), nn.TransformerEncoderLayer(16, 2, 32), nn.Linear(16, 4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    tokens = (x * 10).long().clamp(0, 49)
    optimizer.zero_grad()
    padding = tokens == 0
    states = model[1](model[0](tokens).transpose(0, 1), src_key_padding_mask=padding)
    criterion(model[2](states.mean(0)), y).backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL615",
        name="term-of-nothing-trained",
        severity="warning",
        message="a term of the loss depends on none of the weights that are stepped: it changes nothing",
        why="Both sides of it are data, or the answers of a network that stays as it is: the output of the network "
        "that is trained was meant for one of them. Or item() has made it a number, which has no gradient.",
        wrong="""
teacher = nn.Linear(8, 4).requires_grad_(False)
for x, y in loader:
    optimizer.zero_grad()
    out, goal = model(x), teacher(x)
    soft = F.kl_div(goal.log_softmax(-1), goal.softmax(-1), reduction="batchmean")
    (F.cross_entropy(out, y) + soft).backward()
    optimizer.step()
""".strip(),
        fix="compute it of the output of the network that is trained",
        example="""
teacher = nn.Linear(8, 4).requires_grad_(False)
for x, y in loader:
    optimizer.zero_grad()
    out, goal = model(x), teacher(x)
    soft = F.kl_div(out.log_softmax(-1), goal.softmax(-1), reduction="batchmean")
    (F.cross_entropy(out, y) + soft).backward()
    optimizer.step()
""".strip(),
    ),
    Code(
        code="GL616",
        name="unrelated-target",
        severity="warning",
        message="the target of this loss has nothing to do with the input: there is nothing to be learnt from it",
        why="What was drawn twice is not the same: a diffusion model is to find the noise in its own input, and rows "
        "that were picked by two drawn indices belong to different samples. The best answer is a constant.",
        wrong="""
for x, y in loader:
    optimizer.zero_grad()
    inputs, targets = x[torch.randint(len(x), (len(x),))], y[torch.randint(len(x), (len(x),))]
    F.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
""".strip(),
        fix="draw once, and use it for the input and the target",
        example="""
for x, y in loader:
    optimizer.zero_grad()
    rows = torch.randint(len(x), (len(x),))
    F.cross_entropy(model(x[rows]), y[rows]).backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL617",
        name="one-target",
        severity="warning",
        message="all losses of this layer have one and the same target: a constant is the answer, and is learnt",
        why="A discriminator learns from what is real and what is made only if their labels differ.",
        wrong="""
model = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 1)])
maker, judge = model
one, zero = torch.ones(16, 1), torch.zeros(16, 1)
first = torch.optim.Adam(judge.parameters(), lr=0.001)
second = torch.optim.Adam(maker.parameters(), lr=0.001)
for x, y in loader:
    made = maker(torch.randn(16, 4))
    first.zero_grad()
    real = F.binary_cross_entropy_with_logits(judge(x), one)
    false = F.binary_cross_entropy_with_logits(judge(made.detach()), one)
    (real + false).backward()
    first.step()
    second.zero_grad()
    F.binary_cross_entropy_with_logits(judge(made), one).backward()
    second.step()
""".strip(),
        fix="give what is to be told apart different labels",
        example="""
model = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 1)])
maker, judge = model
one, zero = torch.ones(16, 1), torch.zeros(16, 1)
first = torch.optim.Adam(judge.parameters(), lr=0.001)
second = torch.optim.Adam(maker.parameters(), lr=0.001)
for x, y in loader:
    made = maker(torch.randn(16, 4))
    first.zero_grad()
    real = F.binary_cross_entropy_with_logits(judge(x), one)
    false = F.binary_cross_entropy_with_logits(judge(made.detach()), zero)
    (real + false).backward()
    first.step()
    second.zero_grad()
    F.binary_cross_entropy_with_logits(judge(made), one).backward()
    second.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL618",
        name="softmax-axis",
        severity="warning",
        message="the weights of a sum come from a softmax over another dimension than the one that is added up",
        why="Attention and pooling weigh parts against each other. Normalised over the samples, the weights of one "
        "depend on all others in its batch, and do not sum to 1.",
        wrong="""
score = nn.Linear(4, 1)
optimizer = torch.optim.SGD([*model.parameters(), *score.parameters()], lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    parts = x.view(-1, 2, 4)
    shares = score(parts).softmax(dim=0)
    pooled = (shares * parts).sum(dim=1)
    criterion(model(pooled.repeat(1, 2)), y).backward()
    optimizer.step()
""".strip(),
        fix="give softmax the dimension that the sum goes over",
        example="""
score = nn.Linear(4, 1)
optimizer = torch.optim.SGD([*model.parameters(), *score.parameters()], lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    parts = x.view(-1, 2, 4)
    shares = score(parts).softmax(dim=1)
    pooled = (shares * parts).sum(dim=1)
    criterion(model(pooled.repeat(1, 2)), y).backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL619",
        name="loss-reversed",
        severity="warning",
        message="the loss is an error with its sign reversed: the error is made as large as can be",
        why="A step makes the loss small. A likelihood or a score that is to be large enters it with a minus, an error "
        "without one.",
        wrong="""
for x, y in loader:
    optimizer.zero_grad()
    logarithms = F.log_softmax(model(x), dim=-1)
    loss = logarithms.gather(1, y[:, None]).mean()
    loss.backward()
    optimizer.step()
""".strip(),
        fix="change the sign of the loss",
        example="""
for x, y in loader:
    optimizer.zero_grad()
    logarithms = F.log_softmax(model(x), dim=-1)
    loss = -logarithms.gather(1, y[:, None]).mean()
    loss.backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL620",
        name="learnt-weight-unbounded",
        severity="warning",
        message="a learnt weight multiplies the loss, and nothing limits its fall: it takes the loss to zero",
        why="The cheapest way to a small loss is a small weight: what the loss shows is no progress, and the gradient "
        "of the network fades with it. A weight by uncertainty has a price, the logarithm of its variance.",
        wrong="""
log_variance = nn.Parameter(torch.zeros(()))
optimizer = torch.optim.SGD([*model.parameters(), log_variance], lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = torch.exp(-log_variance) * criterion(model(x), y)
    loss.backward()
    optimizer.step()
""".strip(),
        fix="add the logarithm of the variance to the loss, as in exp(-s) * loss + s",
        example="""
log_variance = nn.Parameter(torch.zeros(()))
optimizer = torch.optim.SGD([*model.parameters(), log_variance], lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = torch.exp(-log_variance) * criterion(model(x), y) + log_variance
    loss.backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL623",
        name="derivative-of-mean",
        severity="warning",
        message="a derivative by the input is that of a mean over samples, and is compared with what is none",
        why="Samples do not see each other: the derivative of the sum by one of them is that of its own output. That "
        "of the mean is smaller by their number: a norm that is to be 1 becomes as large as the batch, and an equation "
        "of derivatives another one.",
        wrong="""
critic = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
for x, y in loader:
    points = x.clone().requires_grad_()
    optimizer.zero_grad()
    (slopes,) = torch.autograd.grad(critic(points).mean(), points, create_graph=True)
    loss = critic(x).square().mean() + ((slopes.norm(dim=1) - 1) ** 2).mean()
    loss.backward()
    optimizer.step()
""".strip(),
        fix="differentiate the sum, or give grad_outputs ones",
        example="""
critic = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
for x, y in loader:
    points = x.clone().requires_grad_()
    optimizer.zero_grad()
    (slopes,) = torch.autograd.grad(critic(points).sum(), points, create_graph=True)
    loss = critic(x).square().mean() + ((slopes.norm(dim=1) - 1) ** 2).mean()
    loss.backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
)
