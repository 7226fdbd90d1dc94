"""REINFORCE against plain loops; replayed episodes are the same; and a run resumes like any other."""

import sys
from pathlib import Path

import pytest
import torch
from helpers import differences, load, metrics, of_the_run, resumed, trainer, updates, weights

from gradlab.base import randomness
from gradlab.base.option import Invalid
from gradlab.data.episodes import EpisodesData
from gradlab.data.spec import Spec
from gradlab.diagnosis.replay.replay import replay
from gradlab.models.networks.policy import Policy, choose
from gradlab.models.policy import PolicyOption
from gradlab.update.policy_gradient import PolicyGradient, returns_to_go, standardised

gymnasium = pytest.importorskip("gymnasium")
SPEC = Spec("episodes", (4,), "returns", 2, vocabulary=2**31, environment="CartPole-v1")
SMALL = (
    "model=policy",
    "model.width=8",
    "data.samples=24",
    "data.batch_size=4",
    "data.test_samples=4",
    "optimizer=sgd",
)


def policy(spec: Spec = SPEC, **fields: int) -> Policy:
    torch.manual_seed(0)
    return Policy(spec, **vars(PolicyOption(**fields)))


def test_an_episode_is_what_a_plain_loop_plays() -> None:
    model, seeds = policy(), [7, 11, 13]
    state = torch.get_rng_state()
    out = model(torch.tensor(seeds))
    torch.set_rng_state(state)
    draws = [torch.rand(3) for _ in range(out.shape[1])]
    for i, seed in enumerate(seeds):
        environment = gymnasium.make("CartPole-v1")
        seen, ended, t = environment.reset(seed=seed)[0], False, 0
        while not ended:
            probabilities = torch.softmax(model.net(torch.tensor(seen)), dim=0)
            action = int(draws[t][i] >= probabilities[0])
            assert out[i, t].tolist() == pytest.approx([probabilities[action].log().item(), 1.0, 1.0], rel=1e-5)
            seen, _, terminated, truncated, _ = environment.step(action)
            ended, t = terminated or truncated, t + 1
        assert (out[i, t:] == 0).all()
    assert out[:, -1].any(), "as long as the longest"


def test_actions_are_drawn_with_their_probabilities_for_any_scores() -> None:
    scores = torch.tensor([[0.5, -1.0, 0.2]])
    draws = (torch.arange(10_000) + 0.5) / 10_000
    counted = choose(scores.expand(10_000, 3), draws).bincount(minlength=3) / 10_000
    torch.testing.assert_close(counted, scores.softmax(1)[0], atol=2e-4, rtol=0)
    assert choose(scores, None).item() == 0
    for bad in (torch.nan, torch.inf, -torch.inf):
        for draw in (torch.tensor([0.7]), None):
            assert choose(torch.full((1, 3), bad), draw).item() in (0, 1, 2)


@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize("normalise", [False, True])
def test_the_loss_is_minus_the_return_and_its_gradient_is_reinforces(discount: float, normalise: bool) -> None:
    lengths, rewards = [3, 1, 5], torch.rand(3, 5) * 4 - 1
    there = (torch.arange(5) < torch.tensor(lengths)[:, None]).float()
    rewards *= there
    logs = torch.randn(3, 5, requires_grad=True)
    loss = PolicyGradient(discount=discount, normalise=normalise)
    total = loss.sum(torch.stack([logs * there, rewards, there], dim=2), torch.zeros(3))
    total.backward()
    assert total.item() == pytest.approx(-rewards.sum().item(), rel=1e-5)
    advantages = [
        [sum(discount ** (s - t) * rewards[i, s].item() for s in range(t, n)) for t in range(n)]
        for i, n in enumerate(lengths)
    ]
    values = torch.tensor([a for row in advantages for a in row])
    mean, std = (values.mean(), values.std(correction=0)) if normalise else (torch.zeros(()), torch.ones(()))
    for i, row in enumerate(advantages):
        wanted = [-(a - mean.item()) / std.item() for a in row]
        assert logs.grad[i, : len(row)].tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-5)
        assert (logs.grad[i, len(row) :] == 0).all()
    assert loss.count(torch.zeros(3)).item() == 3


def test_one_step_alone_has_no_standardised_advantage() -> None:
    assert standardised(torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0]])).tolist() == [[0, 0]]
    assert returns_to_go(torch.tensor([[1.0, 2.0, 4.0]]), 0.5).tolist() == [[3.0, 4.0, 4.0]]


class Bandit(gymnasium.Env):
    """One step; action 1 is worth 3, action 0 is worth 1."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        return self.observation_space.low, {}

    def step(self, action: int):
        return self.observation_space.low, 1.0 + 2.0 * action, True, False, {}


def test_the_mean_gradient_is_that_of_the_expected_return() -> None:
    """Of which a bandit's is known: d(p0 + 3 p1)/d weights."""
    gymnasium.register("Bandit-v0", Bandit)
    try:
        model = policy(Spec("episodes", (2,), "returns", 2, environment="Bandit-v0"), width=3)
        n = 4000
        loss = PolicyGradient().sum(model(torch.arange(n)), torch.zeros(n)) / n
        found = torch.autograd.grad(loss, list(model.parameters()))
        chances = model.net(torch.tensor([-1.0, -1.0])).softmax(0)
        wanted = torch.autograd.grad(-(chances[0] + 3 * chances[1]), list(model.parameters()))
        flat = [torch.cat([g.flatten() for g in grads]) for grads in (found, wanted)]
        error = (flat[0] - flat[1]).norm() / flat[1].norm()
        assert error < 0.1, "a standard error of about 0.03"
        assert loss.item() == pytest.approx(-(chances[0] + 3 * chances[1]).item(), rel=0.05)
    finally:
        gymnasium.registry.pop("Bandit-v0")


def test_evaluation_takes_the_likeliest_action_and_draws_nothing(tmp_path: Path) -> None:
    model, seeds = policy().eval(), torch.tensor([1, 2])
    before = torch.get_rng_state()
    assert torch.equal(model(seeds), model(seeds)) and torch.equal(torch.get_rng_state(), before)
    trainer(tmp_path / "often", *SMALL, "trainer.epochs=2").run()
    trainer(tmp_path / "never", *SMALL, "trainer.epochs=2", "trainer.evaluate_every=0").run()
    assert differences(updates(tmp_path / "often"), updates(tmp_path / "never")) == []
    last = [line for line in metrics(tmp_path / "often") if "eval/loss" in line][-1]
    assert -500 <= last["eval/loss"] <= -8


@pytest.mark.parametrize("more", [(), ("precision=fp16", "monitor=full", "accumulation.steps=2")], ids=["fp32", "fp16"])
def test_resumed_it_ends_the_same(tmp_path: Path, more: tuple[str, ...]) -> None:
    trainer(tmp_path / "whole", *SMALL, *more).run()
    short = trainer(tmp_path / "part", *SMALL, *more, "trainer.checkpoint_every=2")
    short.stop_asked = lambda: short.update.attempts == 2  # type: ignore[method-assign]
    assert short.run().status == "interrupted"
    torch.rand(3)
    resumed(tmp_path / "part", *SMALL, *more).run()
    states = [of_the_run(load(tmp_path / name)) for name in ("whole", "part")]
    for state in states:
        state["random"][0].pop("python")  # a first import may draw from it
    assert differences(*states) == []
    assert differences(metrics(tmp_path / "whole"), metrics(tmp_path / "part")) == []


def test_a_replay_plays_the_same_episodes(tmp_path: Path) -> None:
    run = trainer(tmp_path, *SMALL)
    batches, _ = run.batches(0, 0, 1)
    random = randomness.random_state()
    again = replay(run.module, run.loss, run.update.precision, [b[:2] for b in batches])
    randomness.set_random_state(random)
    stats = run.update(batches)
    assert again.loss == stats.loss.item() and again.grad_norm == pytest.approx(stats.grad_norm.item(), rel=1e-6)


def test_nan_weights_are_found_without_an_exception(tmp_path: Path) -> None:
    run = trainer(tmp_path, *SMALL)
    with torch.no_grad():
        run.module.net[0].weight[0, 0] = torch.nan
    batches, _ = run.batches(0, 0, 1)
    before = weights(run.module)
    stats = run.update(batches)
    assert stats.skipped.item() == 1 and not stats.grad_norm.isfinite()
    assert torch.equal(weights(run.module).nan_to_num(7), before.nan_to_num(7))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.environment=Nope-v1"], "data.environment=Nope-v1: "),
        (["data.environment=Pendulum-v1"], "data.environment=Pendulum-v1: must show vectors and offer"),
        (["loss=cross_entropy"], "loss=cross_entropy: needs classes or tokens, but the data provides returns"),
        (["data=digits"], "model=policy: needs episodes, but the data provides images"),
        (["loss=policy_gradient", "loss.discount=0"], "loss.discount=0.0: must be in (0, 1]"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(Invalid) as error:
        trainer(tmp_path, "model=policy", *overrides)
    assert str(error.value).startswith(message) and len(str(error.value).splitlines()) == 1


def test_without_gymnasium_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)  # importing it raises ImportError
    with pytest.raises(Invalid) as error:
        EpisodesData().load(torch.device("cpu"))
    assert str(error.value) == "environment=CartPole-v1: needs gymnasium: pip install 'gradlab[rl]'"


def test_seeds_of_episodes_depend_on_the_seed_of_the_data_alone() -> None:
    cpu = torch.device("cpu")
    one, two, other = (EpisodesData(samples=50, test_samples=5, seed=s).load(cpu) for s in (3, 3, 4))
    assert torch.equal(one.train.inputs, two.train.inputs) and not torch.equal(one.train.inputs, other.train.inputs)
    assert one.spec == SPEC and len(set(one.train.inputs.tolist() + one.test.inputs.tolist())) == 55


@pytest.mark.slow
def test_the_experiment_diverges_and_clipping_cures_it(tmp_path: Path) -> None:
    """A third of the experiment: without clipping the return falls, with clipping it grows."""
    last = []
    for name, clip in (("none", ()), ("norm", ("clip=norm", "clip.max_norm=0.5"))):
        trainer(tmp_path / name, "+experiment=policy_gradient", *clip, "trainer.updates=50").run()
        last.append(-sum(line["train/loss"] for line in updates(tmp_path / name)[-10:]) / 10)
    assert last[0] < 20 and last[1] > 40
