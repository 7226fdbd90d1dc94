"""Which jobs are one program, what is run one by one and why, and the processes that train."""

import copy
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import children, composed, gone
from omegaconf import OmegaConf
from test_vectorized_jobs import planned

from gradlab.base.option import Invalid
from gradlab.config.schema import to_config
from gradlab.sweep.vectorized.grouping import alone, groups, program
from gradlab.sweep.vectorized.program import LEAST, Program, dealt
from gradlab.sweep.vectorized.workers import Chunk, Workers

TINY = ("model=custom", "data=digits", "data.batch_size=16", "expect=any", "trainer.updates=3")


def code(base: tuple[str, ...], *changed: str) -> str:
    cfg = copy.deepcopy(composed(*base))
    for override in changed:
        OmegaConf.update(cfg, *override.split("=", 1))
    return program(to_config(cfg), OmegaConf.to_container(cfg, resolve=True))  # type: ignore[arg-type]


FP16 = ("precision=fp16", "clip=norm", "noise=gaussian", "schedule=warmup_cosine")
TOGETHER = [
    ("optimizer.lr=0.1",),
    ("optimizer.lr=0.1", "clip.max_norm=5", "seed=3", "optimizer.weight_decay=0.3", "optimizer.beta1=0.5"),
    ("precision.init_scale=8", "precision.growth_interval=3", "precision.min_scale=1e-3", "precision.check_every=9"),
    ("schedule.warmup=7", "schedule.min_factor=0.5", "noise.eta=0.3", "noise.gamma=0.1"),
    ("model.init=he", "model.gain=2"),
    ("expect=healthy", "story=other", "diagnosis.learning=0.2"),
]
APART = [
    ("model.width=32",),
    ("model.activation=relu",),
    ("optimizer=sgd",),
    ("clip=value",),
    ("precision=bf16",),
    ("precision.nonfinite=stop",),
    ("precision.enabled=false",),
    ("schedule=warmup",),
    ("schedule.updates=50",),  # null, the length of the run, is another kind of value
    ("data.batch_size=16",),
    ("data.seed=1",),
    ("accumulation.steps=2",),
    ("trainer.updates=7",),
    ("trainer.epochs=7",),
    ("monitor.every=1",),
    ("loss.reduction=sum",),
]


@pytest.mark.parametrize("changed", TOGETHER, ids=" ".join)
def test_jobs_that_differ_in_numbers_are_one_program(changed: tuple[str, ...]) -> None:
    assert code(FP16, *changed) == code(FP16)


@pytest.mark.parametrize("changed", APART, ids=" ".join)
def test_jobs_that_differ_in_code_or_shapes_are_two(changed: tuple[str, ...]) -> None:
    if "." in changed[0]:
        assert code(FP16, *changed) != code(FP16)
    else:
        assert code(tuple(o for o in FP16 if o.split("=")[0] != changed[0].split("=")[0]) + changed) != code(FP16)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (("model.activation_checkpointing=true",), "model.activation_checkpointing=true"),
        (("model=transformer", "model.activation_checkpointing=true"), "model.activation_checkpointing=true"),
        (("+pitfall=no_clip",), "pitfall"),
        (("trainer.compile=true",), "compile"),
        (("monitor=full",), "monitor=full"),
        (("monitor.cost=true",), "monitor.cost"),
        (("accumulation=ramp", "precision=fp16"), "micro-batches"),
        (("resume=somewhere",), "resume"),
        (("accumulation=ramp",), None),
        (("accumulation=ramp", "accumulation.end=1", "precision=fp16"), None),
        (("monitor=none",), None),
        (("model=transformer", "precision=bf16", "clip=agc"), None),
    ],
    ids=str,
)
def test_what_a_configuration_says_against_lanes(overrides: tuple[str, ...], why: str | None) -> None:
    found = alone(to_config(composed(*overrides)))
    assert (found is None) == (why is None) and (why or "") in (found or "")


def test_groups_are_in_the_order_of_their_first_jobs(tmp_path: Path) -> None:
    lists = [("clip=norm",), ("clip=value",), ("monitor=full",), ("clip=norm", "clip.max_norm=3"), ("clip=value",)]
    together, single = groups(planned(tmp_path, i, *overrides) for i, overrides in enumerate(lists))
    assert [[job.number for job in jobs] for jobs in together] == [[0, 3], [1, 4]]
    assert [(job.number, "monitor" in why) for job, why in single] == [(2, True)]


def probed(tmp_path: Path, *overrides: str) -> Program:
    return Program([planned(tmp_path, i, *overrides, f"optimizer.lr={lr}") for i, lr in enumerate((0.01, 0.001))])


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (("model.target=nets:Branching",), "cannot be trained under vmap"),
        (("model.target=nets:Tiny", "+model.kwargs.dropout=0.5"), "draws random numbers"),
        (("model.target=nets:Drawing",), "draws random numbers"),
        (("model.target=nets:Replacing",), "replaces its buffer mean"),
        (("model.target=nets:Overflows",), "left"),
        (("model.target=nets:Remembering", "+model.kwargs.how=replaced"), "remembers in mean,"),
        (("model.target=nets:Remembering", "+model.kwargs.how='in place'"), "remembers in mean,"),
        (("model.target=nets:Remembering", "+model.kwargs.how=list"), "remembers in means,"),
        (("model.target=nets:Remembering", "+model.kwargs.how=first"), "remembers in last,"),
        (("model.target=nets:doubled",), None),  # fails alone already
        (("model.target=nets:Halved",), "has parameters of torch.bfloat16"),
        (("model.target=nets:Heads", "precision=bf16"), "under vmap"),
        (("model=lstm", "model.dropout=0.2", "model.layers=2"), "draws random numbers"),
        (("model=transformer", "model.dropout=0.2"), "draws random numbers"),
        (("model.target=nets:Tiny", "data.batch_size=100000"), "data.batch_size"),
    ],
    ids=str,
)
def test_what_only_a_forward_pass_says_against_lanes(
    tmp_path: Path, overrides: tuple[str, ...], why: str | None
) -> None:
    with pytest.raises(Invalid) as refused:
        probed(tmp_path, *TINY, *overrides)
    assert why is None or why in str(refused.value)
    assert str(refused.value).count("\n") == 0


def test_a_tensor_that_a_module_keeps_and_leaves_alone_says_nothing_against_lanes(tmp_path: Path) -> None:
    assert probed(tmp_path, *TINY, "model.target=nets:Remembering", "+model.kwargs.how=never").used


SLOW = pytest.mark.slow


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=SLOW), "bf16", pytest.param("fp16", marks=SLOW)])
@pytest.mark.parametrize(
    "overrides",
    [
        ("model=transformer", "model.layers=2", "model.width=16", "data.length=16", "data.samples=100"),
        ("model=transformer", "model.layers=2", "model.norm=none", "data=digits"),
        ("model=lstm", "model.layers=2", "data=digits"),
        ("model=lstm", "model.cell=gru", "data=digits"),
        ("model=lstm", "model.cell=rnn", "data=adding", "data.length=20"),
        ("+experiment=exploding",),
        ("model=sigmoid_mlp", "model.norm=batch"),
        ("+experiment=vanishing", "model.norm=layer"),
        pytest.param(("model=resnet", "data.batch_size=16"), marks=SLOW),
        pytest.param(("model=resnet", "model.norm=group", "data.batch_size=16"), marks=SLOW),
        ("model=custom", "data=digits", "model.target=nets:Odd"),
        ("loss.reduction=sum", "seed=4"),
    ],
    ids=str,
)
def test_every_shipped_model_is_lanes_in_every_precision(
    tmp_path: Path, precision: str, overrides: tuple[str, ...]
) -> None:
    made = probed(tmp_path, *overrides, f"precision={precision}")
    assert made.kept > 0 and made.state > 0 and made.used


def test_jobs_of_several_seeds_are_one_program(tmp_path: Path) -> None:
    Program([planned(tmp_path, seed, "model=sigmoid_mlp", f"seed={seed}") for seed in range(3)])


def test_chunks_hold_every_job_once_and_fit(tmp_path: Path) -> None:
    jobs = [planned(tmp_path, 0, "model=sigmoid_mlp")] * 100
    made = Program(jobs)
    for workers, lanes, memory, most in (
        (1, None, None, LEAST),
        (2, 7, None, 7),
        (2, None, 3e-3, 100),
        (1, None, 0.02, 100),
    ):
        chunks = made.chunks(workers, lanes, memory)
        assert sorted(i for chunk in chunks for i in chunk) == list(range(100))
        assert max(map(len, chunks)) <= most and len(chunks) >= workers
        if memory is not None:
            held = [len(chunk) * made.state + made.width * made.kept for chunk in chunks]
            assert max(held) <= memory * 2**30 / workers or max(map(len, chunks)) == 1
    assert all(len(chunk) == 1 for chunk in made.chunks(1, None, 1e-9))  # one always runs
    assert dealt([[0], [1], [2], [3], [4], [5], [6]], 3) == [[0, 3, 6], [1, 4], [2, 5]]
    assert dealt([[0, 1, 2, 3], [4, 5], [6, 7]], 4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert dealt([[0, 1, 2, 3, 4]], 2) == [[0, 1], [2, 3], [4]]


def test_lanes_of_one_seed_are_together_where_there_are_enough(tmp_path: Path) -> None:
    jobs = [planned(tmp_path, 0, "model=sigmoid_mlp", f"seed={i % 3}") for i in range(30)]
    made = Program(jobs)
    for chunk in made.chunks(1, 10, None):
        assert len({jobs[i].config.seed for i in chunk}) == 1
    assert sorted(map(len, made.chunks(1, 12, None))) == [10, 10, 10]
    few = [planned(tmp_path, 0, "model=sigmoid_mlp", f"seed={i}") for i in range(8)]
    assert [len(c) for c in Program(few).chunks(1, 8, None)] == [8]


# Processes


def collected(work: Callable[..., None], chunks: list[Chunk], number: int = 2) -> dict[str, Any]:
    """What is told of chunks that are trained in processes."""
    told: dict[str, Any] = {"ended": [], "updates": 0, "lost": []}
    workers = Workers(work, number)

    def updates(made: int) -> None:
        told["updates"] += made

    try:
        workers.run(
            chunks,
            lambda chunk, place, code: told["ended"].append((chunk.program, place, code)),
            updates,
            lambda chunk, places, why: told["lost"].append((chunk.program, places, why)),
        )
    finally:
        workers.end()
    assert all(not process.is_alive() for process in workers.pipes.values())
    return told


CHUNKS = [Chunk(i, [0, 1, 2]) for i in range(5)]


def test_every_job_of_every_chunk_is_told_of_once() -> None:
    def work(chunk: Chunk, ended: Any, beat: Any) -> None:
        for place in chunk.places:
            beat(10)
            ended(place, place)

    told = collected(work, CHUNKS)
    assert sorted(told["ended"]) == [(i, place, place) for i in range(5) for place in range(3)]
    assert told["updates"] == 150 and not told["lost"]


@pytest.mark.parametrize("how", ["exit", "kill", "raise", "leave"])
def test_a_chunk_that_is_lost_costs_no_other(how: str) -> None:
    """After the first of its three jobs has ended."""

    def work(chunk: Chunk, ended: Any, beat: Any) -> None:
        for place in chunk.places:
            ended(place, 0)
            if chunk.program == 1:
                if how == "exit":
                    os._exit(3)
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if how == "raise":
                    raise ValueError("no luck today")
                return

    told = collected(work, CHUNKS)
    ((program, places, why),) = told["lost"]
    assert (program, places) == (1, [1, 2])
    says = {"exit": "ended (3)", "kill": "ended (-9)", "raise": "no luck today", "leave": "not trained"}
    assert says[how] in why
    assert Counter(program for program, *_ in told["ended"]) == {0: 3, 1: 1, 2: 3, 3: 3, 4: 3}


def test_what_no_process_is_left_to_train_is_lost_and_said() -> None:
    told = collected(lambda chunk, ended, beat: os._exit(1), CHUNKS, 2)
    assert sorted(program for program, *_ in told["lost"]) == list(range(5))
    assert sum("no process was left" in why for *_, why in told["lost"]) == 3


def test_processes_end_with_the_one_that_began_them(tmp_path: Path) -> None:
    """At their next sign of life, or while they wait for work, where it is killed."""

    def work(chunk: Chunk, ended: Any, beat: Any) -> None:
        (tmp_path / str(os.getpid())).touch()
        while True:
            time.sleep(0.05)
            beat(1)

    parent = os.fork()
    if not parent:
        try:
            workers = Workers(work, 2)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            next(iter(workers.pipes)).recv()  # one waits for ever, one works
            workers.run([Chunk(0, [0])], *[lambda *told: None] * 3)  # type: ignore[arg-type]
        finally:
            os._exit(0)
    end = time.monotonic() + 20
    while not list(tmp_path.iterdir()):
        assert time.monotonic() < end
        time.sleep(0.05)
    workers_of = children(parent)
    assert len(workers_of) == 2
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert gone(workers_of), "orphans"
