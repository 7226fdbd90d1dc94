"""What losses reach, and what clipping and steps act on."""

from __future__ import annotations

from gradlab.codes.code import Code

CODES = (
    Code(
        code="GL701",
        name="step-without-gradient",
        severity="error",
        message="the optimizer steps, and no backward pass has reached any of its parameters: nothing is trained",
        why="The optimizer holds the parameters of a model that was replaced since, or of a frozen one, or the loss "
        "has lost its graph (`torch.tensor(loss)`, `.item()`, NumPy), or backward() comes after the step. A step skips "
        "parameters without a gradient.",
        wrong="""
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = nn.Linear(8, 4)
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
""".strip(),
        fix="make the optimizer of the parameters that the loss is computed from, compute it from these and not from "
        "copies of their data, and keep it a tensor",
        example="""
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # after the last change of the model
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
""".strip(),
    ),
    Code(
        code="GL702",
        name="weights-in-two-optimizers",
        severity="error",
        message="two optimizers have the same weights, and both step on them",
        why="Where both step on one gradient, the steps add up, with two learning rates and two sets of moments. Where "
        "one of them was to have the weights of another network, nothing trains those.",
        wrong="""
first = torch.optim.SGD(model.parameters(), lr=0.1)
second = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in loader:
    model.zero_grad()
    criterion(model(x), y).backward()
    first.step()
    second.step()
""".strip(),
        fix="give each parameter to one optimizer, that of its own network, or zero the gradients between the steps",
        example="""
first = torch.optim.SGD([p for p in model.parameters() if p.dim() > 1], lr=0.1)
second = torch.optim.SGD([p for p in model.parameters() if p.dim() <= 1], lr=0.01)
for x, y in loader:
    model.zero_grad()
    criterion(model(x), y).backward()
    first.step()
    second.step()
""".strip(),
    ),
    Code(
        code="GL703",
        name="frozen-and-forgotten",
        severity="warning",
        message="parameters are frozen during the first updates and never unfrozen: they are trained no more",
        why="The optimizer goes on, and skips what requires no gradient. It was set to False for a moment, as for the "
        "step of another network, and not back to True.",
        wrong="""
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    model[0].requires_grad_(False)
    probe(model)
""".strip(),
        fix="set requires_grad back to True",
        example="""
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    model[0].requires_grad_(False)
    probe(model)
    model[0].requires_grad_(True)
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL704",
        name="gradient-of-another-loss",
        severity="error",
        message="the step includes the gradient of a loss of another network, which works against its own",
        why="A backward pass reaches every network that its loss was computed from: the loss of a discriminator "
        "the generator, and that of a generator the discriminator.",
        wrong="""
for x, y in loader:
    first.zero_grad()
    second.zero_grad()
    made = maker(x)
    judge(made).mean().backward(retain_graph=True)
    first.step()
    (-judge(made)).mean().backward()
    second.step()
""".strip(),
        fix="detach what the other network made, or zero its gradients before its own loss",
        example="""
for x, y in loader:
    first.zero_grad()
    made = maker(x)
    judge(made.detach()).mean().backward()
    first.step()
    second.zero_grad()
    (-judge(made)).mean().backward()
    second.step()
""".strip(),
        found_by=("audit", "watch"),
    ),
    Code(
        code="GL705",
        name="clip-elsewhere",
        severity="error",
        message="clipping acts on none of the gradients of this step",
        why="A generator such as `model.parameters()` is empty when it is used a second time; another model's "
        "parameters have other gradients, or none. Clipping of none is no error.",
        wrong="""
teacher, model = nn.Linear(8, 4), nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    torch.nn.utils.clip_grad_norm_(teacher.parameters(), 1.0)
    optimizer.step()
""".strip(),
        fix="pass model.parameters() of the model that is stepped",
        example="""
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""".strip(),
    ),
    Code(
        code="GL706",
        name="backward-twice",
        severity="error",
        message="backward() runs twice on one loss: its gradient is doubled",
        why="The second pass adds the same gradient once more. Under SGD the learning rate is twice as high.",
        wrong="""
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward(retain_graph=True)
    loss.backward()
    optimizer.step()
""".strip(),
        fix="call backward() once",
        example="""
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL707",
        name="training-in-eval",
        severity="warning",
        message="the model is trained in eval(): dropout is off, or batch statistics are fixed",
        why="What model.eval() sets holds until model.train() is called.",
        wrong="""
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    model.eval()
    evaluate(model)
""".strip(),
        fix="call model.train() after the evaluation",
        example="""
for epoch in range(epochs):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    model.eval()
    evaluate(model)
""".strip(),
    ),
    Code(
        code="GL708",
        name="weights-without-optimizer",
        severity="warning",
        message="weights get gradients and no optimizer holds them: they are never trained",
        why="A part of the model was left out of the optimizer, or made after it, or lies in a plain list, of which "
        "parameters() does not know; or a loss has weights of its own. If they are meant to stay as they are, "
        "requires_grad=False says so, and saves their part of the backward pass.",
        wrong="""
optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
""".strip(),
        fix="pass these weights to an optimizer, or freeze them with requires_grad_(False)",
        example="""
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL709",
        name="requires-grad-of-module",
        severity="warning",
        message="requires_grad of a module is a plain attribute: its weights are what they were before",
        why="PyTorch reads requires_grad of tensors alone. What should be frozen is trained, what should be trained "
        "stays frozen, and there is no message.",
        wrong="""
model[0].requires_grad = False
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
""".strip(),
        fix="call module.requires_grad_(...), with an underscore",
        example="""
model[0].requires_grad_(False)
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL710",
        name="not-finite-replaced",
        severity="warning",
        message="gradients that are not finite after backward() are replaced before the step, and look healthy",
        why="NaN in one gradient comes out of the whole graph above it: what is left of such an update is no gradient "
        "of the loss. Where it begins stays hidden.",
        wrong="""
for x, y in loader:
    optimizer.zero_grad()
    out = model(x)
    (criterion(out, y) + torch.sqrt((out - out).square().sum())).backward()
    for p in model.parameters():
        torch.nan_to_num_(p.grad, 0.0, 0.0, 0.0)
    optimizer.step()
""".strip(),
        fix="find where it begins, with torch.autograd.detect_anomaly(), or skip the whole update",
        example="""
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    if torch.isfinite(norm):
        optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL711",
        name="advantage-not-detached",
        severity="error",
        message="the policy's loss trains the value too: its advantage is not detached",
        why="The advantage is a weight of the loss. Where it has a graph, it moves the value to where that loss "
        "is small, against the regression to the returns.",
        wrong="""
for x, returns in loader:
    optimizer.zero_grad()
    policy = torch.distributions.Categorical(logits=actor(x))
    advantage = returns - critic(x).squeeze(-1)
    loss = -(policy.log_prob(policy.sample()) * advantage).mean() + advantage.square().mean()
    loss.backward()
    optimizer.step()
""".strip(),
        fix="detach the advantage in the policy's loss",
        example="""
for x, returns in loader:
    optimizer.zero_grad()
    policy = torch.distributions.Categorical(logits=actor(x))
    advantage = returns - critic(x).squeeze(-1)
    loss = -(policy.log_prob(policy.sample()) * advantage.detach()).mean() + advantage.square().mean()
    loss.backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL712",
        name="graph-cut",
        severity="warning",
        message="the graph of these weights ends here, before the loss: no gradient goes through here",
        why="Values and no gradient pass detach(), .data, no_grad(), conversions to numbers or NumPy, indices, "
        "comparisons and rounding. The optimizer skips what has none, without a message. Weights that are meant to "
        "stay as they are belong to no optimizer.",
        wrong="""
encoder, head = nn.Linear(8, 8), nn.Linear(8, 4)
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    with torch.no_grad():
        hidden = encoder(x)
    criterion(head(hidden), y).backward()
    optimizer.step()
""".strip(),
        fix="remove what ends the graph, or leave these weights out of the optimizer",
        example="""
encoder, head = nn.Linear(8, 8), nn.Linear(8, 4)
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    hidden = encoder(x)
    criterion(head(hidden), y).backward()
    optimizer.step()
""".strip(),
    ),
    Code(
        code="GL713",
        name="step-missing",
        severity="warning",
        message="backward passes give the weights of this optimizer gradients, and it never steps",
        why="The step was forgotten, or is that of another optimizer. The gradients of all passes add up, unused.",
        wrong="""
first = torch.optim.SGD(model[0].parameters(), lr=0.1)
second = torch.optim.SGD(model[-1].parameters(), lr=0.1)
for x, y in loader:
    first.zero_grad()
    second.zero_grad()
    criterion(model(x), y).backward()
    second.step()
""".strip(),
        fix="step every optimizer after the backward pass, or freeze its weights",
        example="""
first = torch.optim.SGD(model[0].parameters(), lr=0.1)
second = torch.optim.SGD(model[-1].parameters(), lr=0.1)
for x, y in loader:
    model.zero_grad()
    criterion(model(x), y).backward()
    first.step()
    second.step()
""".strip(),
    ),
    Code(
        code="GL714",
        name="hard-value",
        severity="warning",
        message="values go on to the loss here, and no gradient comes back: other terms alone train what made them",
        why="An index, a comparison, a rounded or drawn number has no gradient. What is behind it is trained as if the "
        "rest of the network were not there.",
        wrong="""
encoder, decoder = nn.Linear(8, 4), nn.Linear(4, 4)
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    hidden = encoder(x)
    rounded = hidden.round()
    (F.cross_entropy(decoder(rounded), y) + 0.1 * hidden.square().mean()).backward()
    optimizer.step()
""".strip(),
        fix="let the gradient around it: hidden + (rounded - hidden).detach(), rsample(), a soft value, or "
        "create_graph=True of autograd.grad()",
        example="""
encoder, decoder = nn.Linear(8, 4), nn.Linear(4, 4)
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    hidden = encoder(x)
    rounded = hidden + (hidden.round() - hidden).detach()
    (F.cross_entropy(decoder(rounded), y) + 0.1 * hidden.square().mean()).backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL715",
        name="zero-gradient",
        severity="warning",
        message="the gradient is exactly zero behind this call: these weights never move",
        why="A product of two factors that both begin at zero, units that are all dead, an output that is clamped, or "
        "two uses that cancel: the gradient is there, and is zero for ever.",
        wrong="""
down, up = nn.Parameter(torch.zeros(8, 2)), nn.Parameter(torch.zeros(2, 4))
optimizer = torch.optim.SGD([*model.parameters(), down, up], lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x) + x @ down @ up, y).backward()
    optimizer.step()
""".strip(),
        fix="begin one of two factors at other values than zero; where units are dead or saturated, begin with other "
        "biases, or bring inputs and weights to a size at which they are not",
        example="""
down, up = nn.Parameter(torch.randn(8, 2)), nn.Parameter(torch.zeros(2, 4))
optimizer = torch.optim.SGD([*model.parameters(), down, up], lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x) + x @ down @ up, y).backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL716",
        name="weights-made-anew",
        severity="error",
        message="these weights are made anew in each forward pass: what they learn is thrown away with them",
        why="A layer that is made in forward() has other random weights each time, which no optimizer holds.",
        wrong="""
for x, y in loader:
    optimizer.zero_grad()
    middle = nn.Linear(4, 4)
    criterion(middle(model(x)), y).backward()
    optimizer.step()
""".strip(),
        fix="make the layer once, in __init__, before the optimizer",
        example="""
middle = nn.Linear(4, 4)
optimizer = torch.optim.SGD([*model.parameters(), *middle.parameters()], lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    criterion(middle(model(x)), y).backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL717",
        name="losses-thrown-away",
        severity="warning",
        message="not all of the losses of an update go backward",
        why="They are overwritten: backward() stands after the loop over batches, tasks or layers, and not in "
        "it, or they were to be added up. Or a term is logged, and not part of the loss.",
        wrong="""
for epoch in range(epochs):
    for x, y in loader:
        loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""".strip(),
        fix="call backward() for each of them, or for their sum; compute what is not to be trained under no_grad()",
        example="""
for epoch in range(epochs):
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL718",
        name="target-not-detached",
        severity="warning",
        message="the target of this loss gets a gradient too: it is not detached",
        why="A target is what the prediction is to follow. With a graph it is moved to meet the prediction: the value "
        "of the next state follows the present one, and a teacher its student.",
        wrong="""
for x, reward in loader:
    optimizer.zero_grad()
    target = reward + 0.9 * value(next_state(x))
    F.mse_loss(value(x), target).backward()
    optimizer.step()
""".strip(),
        fix="compute the target under no_grad(), or detach it",
        example="""
for x, reward in loader:
    optimizer.zero_grad()
    with torch.no_grad():
        target = reward + 0.9 * value(next_state(x))
    F.mse_loss(value(x), target).backward()
    optimizer.step()
""".strip(),
    ),
    Code(
        code="GL719",
        name="graph-used-again",
        severity="error",
        message="this loss goes backward through a graph that an earlier backward() has freed: it fails",
        why="Both losses come from one forward pass. The first backward() goes through it too, and leaves its gradient "
        "in weights that have a loss of their own: the graph of what was made for another network was not cut.",
        wrong="""
maker, judge = nn.Linear(8, 4), nn.Linear(4, 1)
first = torch.optim.SGD(judge.parameters(), lr=0.1)
second = torch.optim.SGD(maker.parameters(), lr=0.1)
for x, y in loader:
    made = maker(x)
    first.zero_grad()
    judge(made).mean().backward()
    first.step()
    second.zero_grad()
    (-judge(made)).mean().backward()
    second.step()
""".strip(),
        fix="detach what the other network made in the first loss, or add the losses up and call backward() once",
        example="""
maker, judge = nn.Linear(8, 4), nn.Linear(4, 1)
first = torch.optim.SGD(judge.parameters(), lr=0.1)
second = torch.optim.SGD(maker.parameters(), lr=0.1)
for x, y in loader:
    made = maker(x)
    first.zero_grad()
    judge(made.detach()).mean().backward()
    first.step()
    second.zero_grad()
    (-judge(made)).mean().backward()
    second.step()
""".strip(),
        found_by=("audit",),
    ),
    Code(
        code="GL720",
        name="loss-without-data",
        severity="warning",
        message="the loss compares outputs of the same weights alone: one output for everything is its minimum",
        why="Both sides are trained to meet, and nothing holds the outputs of different samples apart: a constant does "
        "best, and is learnt. The representation collapses while the loss looks good.",
        wrong="""
for x, y in loader:
    optimizer.zero_grad()
    one, two = model(x + noise()), model(x + noise())
    (-F.cosine_similarity(one, two).mean()).backward()
    optimizer.step()
""".strip(),
        fix="detach one side, behind a predictor on the other, or add a term that keeps outputs apart",
        example="""
for x, y in loader:
    optimizer.zero_grad()
    one, two = model(x + noise()), model(x + noise())
    (-F.cosine_similarity(predictor(one), two.detach()).mean()).backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL721",
        name="samples-as-steps",
        severity="warning",
        message="this layer takes dimension 1 for the samples: one entry of it is read, and the others are left out",
        why="Recurrent and attention layers take (steps, samples, features) unless batch_first is True. Given the "
        "samples first they run over the batch as over a sequence: what a sample gives depends on other samples of the "
        "batch, and never on its own other steps.",
        wrong="""
model = nn.ModuleList([nn.GRU(4, 16), nn.Linear(16, 4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    states, _ = model[0](x.view(-1, 2, 4))
    criterion(model[1](states[:, -1]), y).backward()
    optimizer.step()
""".strip(),
        fix="make the layer with batch_first=True, or exchange the first two dimensions of its input",
        example="""
model = nn.ModuleList([nn.GRU(4, 16, batch_first=True), nn.Linear(16, 4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    states, _ = model[0](x.view(-1, 2, 4))
    criterion(model[1](states[:, -1]), y).backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
)
