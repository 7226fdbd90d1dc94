"""What an optimizer steps on, how often, and what else moves its weights."""

from __future__ import annotations

from gradlab.codes.code import Code

CODES = (
    Code(
        code="GL901",
        name="passes-at-moved-weights",
        severity="warning",
        message="this backward pass adds to the gradient of one before it, though the weights were moved in between",
        why="An optimizer that looks ahead (sharpness-aware, extragradient, LBFGS) wants the gradient at the weights "
        "where it looks. What is left of the pass before makes the step a mixture of both, about twice as long.",
        wrong="""
for x, y in loader:
    criterion(model(x), y).backward()
    with torch.no_grad():
        moves = [0.01 * p.grad for p in model.parameters()]
        torch._foreach_add_(list(model.parameters()), moves)
    criterion(model(x), y).backward()
    with torch.no_grad():
        torch._foreach_sub_(list(model.parameters()), moves)
    optimizer.step()
    optimizer.zero_grad()
""".strip(),
        fix="call zero_grad() before the second pass; of a mean of both, divide each loss by two",
        example="""
for x, y in loader:
    criterion(model(x), y).backward()
    with torch.no_grad():
        moves = [0.01 * p.grad for p in model.parameters()]
        torch._foreach_add_(list(model.parameters()), moves)
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    with torch.no_grad():
        torch._foreach_sub_(list(model.parameters()), moves)
    optimizer.step()
    optimizer.zero_grad()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL902",
        name="step-twice",
        severity="advice",
        message="the optimizer steps a second time on the same gradient, at the weights that its first step has left",
        why="The learning rate is about twice the one that was chosen, and an average of gradients counts each twice.",
        wrong="""
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    optimizer.step()
""".strip(),
        fix="call step() once after each backward pass",
        example="""
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL903",
        name="optimizer-made-anew",
        severity="warning",
        message="the optimizer is made anew again and again: what it has averaged over the gradients is lost each time",
        why="Momentum and the moments of Adam belong to the object. They begin at zero in a new one, long before they "
        "are averages over as many updates as was asked for.",
        wrong="""
for epoch in range(epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
""".strip(),
        fix="make the optimizer once, before the loop",
        example="""
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL904",
        name="state-of-itself",
        severity="warning",
        message="weights are given what they are now: nothing is restored, copied or averaged",
        why="What state_dict() returns are the tensors themselves, which training goes on to change. A best state that "
        "is kept so is the latest one, and a target network that loads its own state never follows. An "
        "average that is kept as p.data is the weights.",
        wrong="""
best, state = float("inf"), None
for epoch in range(epochs):
    train_epoch(model, optimizer)
    loss = evaluate(model)
    if loss < best:
        best, state = loss, model.state_dict()
model.load_state_dict(state)
""".strip(),
        fix="keep copy.deepcopy(model.state_dict()), or load the state of the other network",
        example="""
best, state = float("inf"), None
for epoch in range(epochs):
    train_epoch(model, optimizer)
    loss = evaluate(model)
    if loss < best:
        best, state = loss, copy.deepcopy(model.state_dict())
model.load_state_dict(state)
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL905",
        name="average-inverted",
        severity="warning",
        message="the average takes nearly all of the latest weights each time: decay and 1 - decay are swapped",
        why="An average keeps most of what it was, as 0.999, and takes the rest of the weights. The other way around "
        "it is a copy of them, with nothing averaged.",
        wrong="""
for x, y in loader:
    optimizer.zero_grad()
    loss(student(x), teacher(x).detach(), y).backward()
    optimizer.step()
    for p, q in zip(student.parameters(), teacher.parameters()):
        q.data.mul_(1 - 0.999).add_(p.data, alpha=0.999)
""".strip(),
        fix="multiply the average by the decay, and the weights by 1 - decay",
        example="""
for x, y in loader:
    optimizer.zero_grad()
    loss(student(x), teacher(x).detach(), y).backward()
    optimizer.step()
    for p, q in zip(student.parameters(), teacher.parameters()):
        q.data.mul_(0.999).add_(p.data, alpha=1 - 0.999)
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL906",
        name="average-in-optimizer",
        severity="warning",
        message="weights that follow others after each update are moved by the optimizer too",
        why="A teacher or target is an average of other weights only if nothing else moves it. The loss moves it to "
        "where the student has less to do.",
        wrong="""
optimizer = torch.optim.SGD([*student.parameters(), *teacher.parameters()], lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss(student(x), teacher(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for p, q in zip(student.parameters(), teacher.parameters()):
            q.lerp_(p, 0.01)
""".strip(),
        fix="leave these weights out of the optimizer, and compute what they give under no_grad(); if the trained ones "
        "follow the average, exchange the two",
        example="""
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    with torch.no_grad():
        goal = teacher(x)
    loss(student(x), goal, y).backward()
    optimizer.step()
    with torch.no_grad():
        for p, q in zip(student.parameters(), teacher.parameters()):
            q.lerp_(p, 0.01)
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL907",
        name="learning-rate-zero",
        severity="advice",
        message="the learning rate of these weights is 0 in all updates: they get gradients, and stay what they are",
        why="A group of parameters keeps the rate that it was given until something sets another one.",
        wrong="""
groups = [{"params": body.parameters(), "lr": 0.0}, {"params": head.parameters()}]
optimizer = torch.optim.Adam(groups, lr=0.001)
""".strip(),
        fix="give the group a learning rate, or freeze its weights with requires_grad_(False)",
        example="""
groups = [{"params": body.parameters(), "lr": 0.0001}, {"params": head.parameters()}]
optimizer = torch.optim.Adam(groups, lr=0.001)
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL908",
        name="clip-per-parameter",
        severity="advice",
        message="each tensor is clipped by itself, which changes the direction of the gradient as a whole",
        why="Those above the bound shrink, and the others do not. One call with all parameters keeps the direction.",
        wrong="""
for p in model.parameters():
    torch.nn.utils.clip_grad_norm_(p, max_norm=1.0)
""".strip(),
        fix="clip all parameters in one call",
        example="torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)",
        found_by=("watch",),
    ),
    Code(
        code="GL910",
        name="hook-registered-again",
        severity="warning",
        message="the same hook is registered again and again and not removed: each call adds one more",
        why="A hook stays until its handle removes it, and every copy is called. One that changes a gradient changes "
        "it once more with each copy: a gradient that is halved is halved again and again.",
        wrong="""
for epoch in range(epochs):
    encoder.weight.register_hook(lambda g: 0.5 * g)
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
""".strip(),
        fix="register it once before the loop, or call remove() of its handle",
        example="""
encoder.weight.register_hook(lambda g: 0.5 * g)
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL911",
        name="statistics-left-behind",
        severity="warning",
        message="an average is evaluated whose weights follow those that are trained, but its batch statistics do not",
        why="Running means and variances are buffers, which parameters() does not list. In eval() the average takes "
        "all means for 0, and all variances for 1.",
        wrong="""
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for p, q in zip(average.parameters(), model.parameters()):
            p.lerp_(q, 0.01)
""".strip(),
        fix="copy the buffers too, or compute them anew before each evaluation (torch.optim.swa_utils.update_bn)",
        example="""
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for p, q in zip(average.parameters(), model.parameters()):
            p.lerp_(q, 0.01)
        for p, q in zip(average.buffers(), model.buffers()):
            p.copy_(q)
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL912",
        name="target-never-updated",
        severity="warning",
        message="the network that makes the targets is a copy at its initial weights, and nothing has moved it",
        why="A target network, or a teacher that averages, says what the trained network knew a while ago. One that "
        "stays as it was drawn says nothing, and the trained one learns its noise. Where the text does anything else "
        "with the copy, which may move it later, nothing is said.",
        wrong="""
target = copy.deepcopy(net)
for state, action, reward, after in replay:
    with torch.no_grad():
        wanted = reward + 0.99 * target(after).amax(1)
    optimizer.zero_grad()
    F.mse_loss(net(state).gather(1, action).squeeze(1), wanted).backward()
    optimizer.step()
""".strip(),
        fix="copy, or average, the trained weights into it every so many updates, inside the loop",
        example="""
target = copy.deepcopy(net)
for i, (state, action, reward, after) in enumerate(replay):
    with torch.no_grad():
        wanted = reward + 0.99 * target(after).amax(1)
    optimizer.zero_grad()
    F.mse_loss(net(state).gather(1, action).squeeze(1), wanted).backward()
    optimizer.step()
    if i % 100 == 99:
        target.load_state_dict(net.state_dict())
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL913",
        name="learning-rate-far-lower",
        severity="warning",
        message="the learning rate of these weights is so far below that of others that they stay as they were drawn",
        why="A power of ten that slipped in a configuration, or a factor that was meant for a pretrained part. The "
        "rest of the loop learns, around a part that does not.",
        wrong="""
images, texts = Encoder(), Encoder()
first = torch.optim.Adam(images.parameters(), lr=1e-3)
second = torch.optim.Adam(texts.parameters(), lr=1e-6)
""".strip(),
        fix="give new weights a learning rate of the usual size; 100 times less is for weights trained before",
        example="""
images, texts = Encoder(), Encoder()
first = torch.optim.Adam(images.parameters(), lr=1e-3)
second = torch.optim.Adam(texts.parameters(), lr=1e-3)
""".strip(),
        found_by=("watch",),
    ),
)
