"""Gradients that another network's loss has left."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, audited

MADE = """
maker, judge = nn.Linear(8, 8), nn.Linear(8, 1)
first = torch.optim.SGD(judge.parameters(), lr=0.1)
second = torch.optim.SGD(maker.parameters(), lr=0.1)
for x, y in loader:
"""
CASES = {
    "zeroed after the step alone": (
        """
    judge(maker(x).detach()).mean().backward()
    first.step()
    first.zero_grad()
    second.zero_grad()
    judge(maker(x)).pow(2).mean().backward()  # expect: GL704
    second.step()
""",
        True,
    ),
    "zeroed before each": (
        """
    first.zero_grad()
    judge(maker(x).detach()).mean().backward()
    first.step()
    second.zero_grad()
    judge(maker(x)).pow(2).mean().backward()
    second.step()
""",
        False,
    ),
    "round a circle of two networks": (
        """
    made = maker(x)
    (judge(made).pow(2).mean() + F.mse_loss(maker(made), x)).backward()  # expect: GL704
    second.step()
    second.zero_grad()
    judge(made.detach()).mean().backward()
    first.step()
    first.zero_grad()
""",
        True,
    ),
    "a term that is judged, and one that goes on through the maker, kept for the judge": (
        """
    second.zero_grad()
    first.zero_grad()
    made = maker(x)
    (judge(made).pow(2).mean() + F.mse_loss(maker(made), x)).backward(retain_graph=True)  # expect: GL704
    second.step()
    judge(made + 1).mean().backward()
    first.step()
""",
        True,
    ),
    "made twice before either is judged": (
        """
    made, same = maker(x), maker(y)
    (judge(made).pow(2).mean() + F.mse_loss(same, y)).backward()
    second.step()
    second.zero_grad()
    first.zero_grad()
    judge(maker(x)).mean().backward()  # expect: GL704
    first.step()
""",
        True,
    ),
    "both at once": (
        """
    first.zero_grad()
    second.zero_grad()
    judge(maker(x)).pow(2).mean().backward()
    second.step()
    first.step()
""",
        False,
    ),
    "the loss of one, with the graph of the other": (
        """
    made = maker(x)
    score = judge(made)
    second.zero_grad()
    (score.pow(2).mean() + made.mean()).backward(retain_graph=True)
    first.zero_grad()
    score.mean().backward()  # expect: GL704
    second.step()
    first.step()
""",
        True,
    ),
    "the loss of one, detached": (
        """
    made = maker(x)
    second.zero_grad()
    judge(made).pow(2).mean().backward()
    first.zero_grad()
    judge(made.detach()).mean().backward()
    second.step()
    first.step()
""",
        False,
    ),
    "two losses of both": (
        """
    first.zero_grad()
    second.zero_grad()
    judge(maker(x)).pow(2).mean().backward()
    judge(maker(x + 1)).mean().backward()
    second.step()
    first.step()
""",
        False,
    ),
    "an encoder and a decoder, each of which feeds the other": (
        """
    first.zero_grad()
    second.zero_grad()
    judge(maker(x)).mean().backward()
    second.step()
    maker(judge(y)).mean().backward()
    first.step()
""",
        False,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_uses_its_own_loss_alone(name, tmp_path):
    body, wrong = CASES[name]
    (tmp_path / "a.py").write_text(text := HEAD + MADE + body)
    found = {(f.line, f.code) for f in audited(tmp_path / "a.py") if f.severity == "error"}
    marked = {(i, "GL704") for i, line in enumerate(text.split("\n"), 1) if "expect" in line}
    assert found == marked and bool(found) == wrong


FROZEN = """
    first.zero_grad()
    second.zero_grad()
    {freeze}
    judge(maker(x)).pow(2).mean().backward()
    second.step()
    {thaw}
    judge(maker(x).detach()).mean().backward()
    first.step()
"""


@pytest.mark.parametrize(
    "freeze, thaw, wrong",
    [
        ("judge.requires_grad_(False)", "judge.requires_grad_(True)", False),
        (
            "for p in judge.parameters(): p.requires_grad = False",
            "for p in judge.parameters(): p.requires_grad = True",
            False,
        ),
        ("set_requires_grad(judge, False)", "set_requires_grad(judge, True)", False),
        ("maker.requires_grad_(True)", "maker.requires_grad_(False)", True),
    ],
)
def test_weights_that_need_no_gradient_get_none(freeze, thaw, wrong, tmp_path):
    text = HEAD + "from tools import set_requires_grad\n" + MADE + FROZEN.format(freeze=freeze, thaw=thaw)
    (tmp_path / "a.py").write_text(text)
    assert len(audited(tmp_path / "a.py", "GL704")) == wrong


TRAINER = """
import torch
from models import build_all, create_gan_loss, hinge
from tools import Template
class Trainer(Template):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        judge, opt, schedule = build_all(self.config, steps=len(self.loader))
        self.netD, self.d_optimizer, self.d_schedule = judge.to(self.device), opt, schedule
        d_loss, g_loss = create_gan_loss(self.config)
        self.disc_loss, self.gen_loss = d_loss, g_loss
        self.last_layer = self.model.module.last_layer
    def losses(self, real, made, mode):
        gen = torch.zeros((), device=self.device)
        disc = torch.zeros((), device=self.device)
        if mode == "gen":
            gen = self.gen_loss(self.netD(made, None))
        elif mode == "disc":
            fake, true = self.netD(made.detach(), real)
            disc = self.disc_loss(fake, true)
        return gen, disc
    def train(self, optimizer=None, epoch=0):
        model = self.model
        adversarial = epoch >= self.start
        for x in self.loader:
            model.zero_grad()
            {before}
            made = model(x)[0]
            loss = model.module.compute_loss(made, x)["total"]
            if adversarial:
                loss_gen, _ = self.losses(x, made, mode="gen")
                weight = torch.autograd.grad(loss_gen, self.last_layer(), retain_graph=True)[0].norm().detach()
                loss = loss + weight * loss_gen
            loss.backward()  # expect: GL704
            optimizer.step()
            if adversarial:
                {between}
                _, loss_disc = self.losses(x, made, mode="disc")
                (0.1 * loss_disc).backward()
                self.d_optimizer.step()
"""
FIRST = """
import torch
from models import build_all, hinge
class Trainer:
    def __init__(self, config, loader):
        self.loader = loader
        self.netG, self.netD, self.g_optimizer, self.d_optimizer = build_all(config)
    def of_judge(self, real, made):
        return hinge(self.netD(real), self.netD(made.detach()))
    def of_maker(self, made):
        return -hinge(self.netD(made))
    def fit(self):
        for x in self.loader:
            made = self.netG(torch.randn(x.size(0), 8))
            {between}
            self.of_judge(x, made).backward()
            self.d_optimizer.step()
            {before}
            self.g_optimizer.zero_grad()
            self.of_maker(made).backward()  # expect: GL704
            self.g_optimizer.step()
"""


@pytest.mark.parametrize("zero", ["self.netD.zero_grad(set_to_none=True)", "self.d_optimizer.zero_grad()"])
@pytest.mark.parametrize("place", ["before", "between"])
@pytest.mark.parametrize("text", [TRAINER, FIRST])
def test_losses_show_which_networks_optimizers_have(text, place, zero, tmp_path):
    text = text.replace("{" + place + "}", zero).replace("{before}", "pass").replace("{between}", "pass")
    (tmp_path / "a.py").write_text(text)
    line = next(i for i, one in enumerate(text.split("\n"), 1) if "expect" in one)
    assert [f.line for f in audited(tmp_path / "a.py", "GL704")] == [line] * (place == "before")
