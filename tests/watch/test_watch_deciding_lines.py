"""A mistake is named where what it is about was decided, in loops that are spread over functions and classes."""

import pytest
import torch

import gradlab

HEAD = """
import copy
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
from torch.utils.data import DataLoader, TensorDataset

def net():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

def batch():
    x = torch.randn(16, 8)
    return x, x.sum(1, keepdim=True)

def update(model, optimizer):
    x, y = batch()
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
"""
LOOPS = {
    "warm-up-unfinished": """
def warmed_up(optimizer, length):
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / length))
def loop(watch):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    schedule = warmed_up(optimizer, 5000)  # here
    with watch(model, optimizer):
        for _ in range(50):
            update(model, optimizer)
            schedule.step()
""",
    "schedule-too-short": """
def schedule_of(optimizer, settings):
    return CosineAnnealingLR(optimizer, settings["epochs"])  # here
def loop(watch):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    schedule = schedule_of(optimizer, {"epochs": 5})
    with watch(model, optimizer):
        for epoch in range(5):
            for _ in range(12):
                update(model, optimizer)
                schedule.step()
""",
    "requires-grad-of-module": """
class Unfreezing:
    def __init__(self, model):
        self.model = model
        for p in model[0].parameters():
            p.requires_grad = False
    def __call__(self, epoch):
        if epoch == 2:
            for part in self.model[:1]:
                part.requires_grad = True  # here
def loop(watch):
    model = net()
    unfreeze = Unfreezing(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with watch(model, optimizer):
        for epoch in range(4):
            unfreeze(epoch)
            for _ in range(4):
                update(model, optimizer)
""",
    "weights-in-two-optimizers": """
def optimizer_of(model, rate):
    return torch.optim.Adam(model.parameters(), rate)
def loop(watch):
    model = net()
    optimizers = {"all": optimizer_of(model, 1e-3),  # here
                  "head": optimizer_of(model[2], 1e-2)}
    with watch(model, list(optimizers.values())):
        for _ in range(4):
            x, y = batch()
            model.zero_grad()
            F.mse_loss(model(x), y).backward()
            for each in optimizers.values():
                each.step()
""",
    "learning-rate-zero": """
def optimizers_of(one, two):
    first = torch.optim.Adam(one.parameters(), 1e-2)
    second = torch.optim.Adam(two.parameters(), lr=0.0)  # here
    return first, second
def loop(watch):
    one, two = net(), net()
    first, second = optimizers_of(one, two)
    with watch([one, two], [first, second]):
        for _ in range(30):
            update(one, first)
            update(two, second)
""",
    "weights-without-optimizer": """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.parts = [nn.Linear(8, 1) for _ in range(3)]  # here
    def forward(self, x):
        return (self.gate(x).softmax(1) * torch.cat([part(x) for part in self.parts], 1)).sum(1, keepdim=True)
def loop(watch):
    model = Experts()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with watch(model, optimizer):
        for _ in range(30):
            update(model, optimizer)
""",
    "step-without-gradient": """
def loop(watch):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)  # here
    model = net()
    with watch(model, optimizer):
        for _ in range(6):
            update(model, optimizer)
""",
    "average-in-optimizer": """
class Taught(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()
        self.teacher = copy.deepcopy(self.net)
    @torch.no_grad()
    def follow(self):
        for slow, fast in zip(self.teacher.parameters(), self.net.parameters()):
            slow.lerp_(fast, 0.02)
def loop(watch):
    model = Taught()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.01)  # here
    with watch(model, optimizer):
        for _ in range(60):
            x, y = batch()
            loss = F.mse_loss(model.net(x), y) + F.mse_loss(model.net(x), model.teacher(x))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.follow()
""",
    "optimizer-made-anew": """
def optimizer_of(model):
    return torch.optim.Adam(model.parameters(), 1e-3)
def epoch(model):
    optimizer = optimizer_of(model)  # here
    for _ in range(5):
        update(model, optimizer)
def loop(watch):
    model = net()
    with watch(model):
        for _ in range(16):
            epoch(model)
""",
    "state-of-itself": """
class Best:
    def see(self, model):
        self.state = model.state_dict()  # here
    def restore(self, model):
        model.load_state_dict(self.state)
def loop(watch):
    model, best = net(), Best()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with watch(model, optimizer):
        for _ in range(5):
            update(model, optimizer)
            best.see(model)
        best.restore(model)
""",
    "loss-kept-with-graph": """
class Meter:
    def __init__(self):
        self.values = []
    def update(self, value):
        self.values.append(value)
def loop(watch):
    model, meter = net(), Meter()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with watch(model, optimizer):
        for _ in range(8):
            x, y = batch()
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            meter.update(loss)  # here
""",
    "zero-before-step": """
class Engine:
    def __init__(self):
        self.model = net()
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
    def clear(self):
        for p in self.model.parameters():
            p.grad = None
    def apply(self):
        self.optimizer.step()
    def update(self):
        x, y = batch()
        F.mse_loss(self.model(x), y).backward()
        self.clear()  # here
        self.apply()
def loop(watch):
    engine = Engine()
    with watch(engine.model, engine.optimizer):
        for _ in range(4):
            engine.update()
""",
    "loss-divided-twice": """
def loop(watch):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with watch(model, optimizer):
        for _ in range(4):
            optimizer.zero_grad()
            for _ in range(4):
                x, y = batch()
                loss = F.mse_loss(model(x), y) / 4
                loss = loss / 4  # here
                loss.backward()
            optimizer.step()
""",
    "gradients-scaled-by-hand": """
def averaged(model, n):
    for p in model.parameters():
        p.grad /= n
def loop(watch):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with watch(model, optimizer):
        for i in range(24):
            x, y = batch()
            F.mse_loss(model(x), y).backward()
            averaged(model, 4)  # here
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
""",
    "losses-thrown-away": """
def loss_of(model):
    x, y = batch()
    return F.mse_loss(model(x), y)
def loop(watch):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with watch(model, optimizer):
        for _ in range(10):
            optimizer.zero_grad()
            for _ in range(3):
                loss = loss_of(model)
            loss.backward()  # here
            optimizer.step()
""",
    "backward-twice": """
def backward(loss):
    loss.backward(retain_graph=True)
def loop(watch):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with watch(model, optimizer):
        for _ in range(4):
            x, y = batch()
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            backward(loss)
            backward(loss)  # here
            optimizer.step()
""",
    "clip-elsewhere": """
def clipped(network):
    return nn.utils.clip_grad_norm_(network.parameters(), 0.5)
def loop(watch):
    one, two = net(), net()
    first, second = torch.optim.SGD(one.parameters(), 1e-2), torch.optim.SGD(two.parameters(), 1e-2)
    with watch([one, two], [first, second]):
        for _ in range(8):
            for model, optimizer, other in ((one, first, one), (two, second, one)):
                x, y = batch()
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                clipped(other)  # here
                optimizer.step()
""",
    "samples-as-steps": """
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = nn.GRU(6, 16)  # here
        self.out = nn.Linear(16, 1)
    def forward(self, x):
        states, _ = self.memory(x)
        return self.out(states[:, -1])
def loop(watch):
    model = Reader()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with watch(model, optimizer):
        for _ in range(4):
            x = torch.randn(16, 10, 6)
            optimizer.zero_grad()
            F.mse_loss(model(x), x.sum(2)[:, -1:]).backward()
            optimizer.step()
""",
    "one-target": """
def judged(out, real):
    return F.binary_cross_entropy_with_logits(out, torch.full_like(out, float(real)))
def loop(watch):
    judge = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(judge.parameters(), 1e-2)
    with watch(judge, optimizer):
        for _ in range(8):
            optimizer.zero_grad()
            loss = judged(judge(torch.randn(16, 8) + 1), True)
            loss = loss + judged(judge(torch.randn(16, 8)), True)  # here
            loss.backward()
            optimizer.step()
""",
    "mixed-reductions": """
def loop(watch):
    model = nn.Linear(16, 32)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with watch(model, optimizer):
        for _ in range(4):
            out = model(torch.randn(16, 16))
            error = F.mse_loss(out, torch.zeros(16, 32))  # here
            size = out.tanh().square().sum()
            optimizer.zero_grad()
            (error + size).backward()
            optimizer.step()
""",
    "padding-mask-inverted": """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(30, 16, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.out = nn.Linear(16, 4)
    def forward(self, tokens):
        mask = tokens != 0  # here
        return self.out(self.layer(self.table(tokens), src_key_padding_mask=mask).mean(1))
def loop(watch):
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with watch(model, optimizer):
        for _ in range(4):
            tokens = torch.randint(1, 30, (16, 9)) * (torch.arange(9) < torch.randint(3, 9, (16, 1)))
            optimizer.zero_grad()
            F.cross_entropy(model(tokens), tokens[:, 0] % 4).backward()
            optimizer.step()
""",
}
LANGUAGE = """
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.memory, self.out = nn.Embedding(20, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 20)
    def forward(self, tokens):
        return self.out(self.memory(self.table(tokens))[0])
class Autoencoder(Recurrent):
    def forward(self, tokens):
        _, state = self.memory(self.table(tokens))
        repeated = state[-1].unsqueeze(1).expand(-1, tokens.shape[1], -1)
        return self.out(self.memory(repeated)[0])
def loop(watch):
    model = {model}
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with watch(model, optimizer):
        for _ in range(4):
            tokens = torch.randint(0, 20, (16, 12))
            optimizer.zero_grad()
            F.cross_entropy(model(tokens{given}).flatten(0, 1), tokens{wanted}.flatten()).backward()  # here
            optimizer.step()
"""
LOADERS = """
def loader(*parts):
    return DataLoader(TensorDataset(*parts), batch_size=16, shuffle=True)
def loop(watch):
    x, y = torch.randn(64, 8), torch.randn(64, 1)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    one, two = {loaders}
    with watch(model, optimizer):
        for _ in range(2):
            for first, second in zip(one, two):  # here
                given, wanted = {batch}
                optimizer.zero_grad()
                F.mse_loss(model(given), wanted).backward()
                optimizer.step()
"""
DRAWN = {
    "apart": ("loader(x), loader(y)", "first[0], second[0]", True),
    "together": ("loader(x, y), loader(x)", "first", False),
    "mixed": ("loader(x, y), loader(x, y)", "[(a + b) / 2 for a, b in zip(first, second)]", False),
    "sizes": ("loader(x), loader(torch.randn(80, 1))", "first[0], second[0]", False),
}


def faults_of(text, folder):
    """Names and lines of the mistakes of a loop, and the line that is marked."""
    path = folder / "loop.py"
    path.write_text(HEAD + text)
    names = {}
    exec(compile(HEAD + text, str(path), "exec"), names)
    torch.manual_seed(0)
    watches = []

    def watch(*given):
        watches.append(gradlab.watch(*given, folder=folder / "out", quiet=True))
        return watches[0]

    names["loop"](watch)
    assert not watches[0].broken
    marked = [i for i, line in enumerate((HEAD + text).split("\n"), 1) if line.endswith("# here")]
    return [(f.name, f.site[1]) for f in watches[0].faults], marked


@pytest.mark.parametrize("name", LOOPS)
def test_the_line_that_decides(name, tmp_path):
    found, marked = faults_of(LOOPS[name], tmp_path)
    assert (name, marked[0]) in found


@pytest.mark.parametrize(
    "model, given, wanted, wrong",
    [
        ("Recurrent()", "", "", True),
        ("Recurrent()", "[:, :-1]", "[:, 1:]", False),
        ("Autoencoder()", "", "", False),
    ],
)
def test_a_recurrent_layer_that_is_given_its_targets(model, given, wanted, wrong, tmp_path):
    text = LANGUAGE.format(model=model, given=given, wanted=wanted)
    found, marked = faults_of(text, tmp_path)
    assert found == [("target-in-sight", marked[0])] * wrong


@pytest.mark.parametrize("how", DRAWN)
def test_loaders_that_draw_apart(how, tmp_path):
    loaders, batch, wrong = DRAWN[how]
    found, marked = faults_of(LOADERS.format(loaders=loaders, batch=batch), tmp_path)
    assert found == [("unrelated-target", marked[0])] * wrong
