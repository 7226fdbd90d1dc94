"""Every file of a run's folder, damaged in many ways: what reads it answers in a line, and no run hides another.

Seeded; `GRADLAB_FAULTS=SEED:N` makes N cases of another seed.
"""

import json
import os
import random
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made
import pytest
from forked import SHORT, Commands

from gradlab import advise, show
from gradlab import list as listing
from gradlab.report import command as report

SEED, CASES = map(int, os.environ.get("GRADLAB_FAULTS", "0:150").split(":"))
ODD = (
    None,
    [],
    {},
    "x",
    "",
    -1,
    0,
    True,
    10**400,
    -(10**30),
    1e308,
    "NaN",
    "Infinity",
    [[]],
    {"a": 1},
    [1, "x"],
    "\x1b[2J",
)
"""What a field of a damaged file may hold."""
READERS: tuple[tuple[Callable[[list[str]], int], tuple[str, ...]], ...] = (
    (listing.main, (".",)),
    (listing.main, (".", "--json", "--jobs")),
    (listing.main, (".", "--filter", "loss<3", "lr>0", "verdict!=exploding", "--sort", "loss")),
    (show.main, ("run",)),
    (show.main, ("run", "--layers")),
    (advise.main, ("run", "--batch", "64")),
    (report.main, ("run",)),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all parts of a structure."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in inner for found in places(part, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A structure with another part."""
    if not path:
        return new
    made = value.copy()
    made[path[0]] = replaced(value[path[0]], path[1:], new)
    return made


def damaged(draw: random.Random, name: str, content: bytes) -> bytes | None:
    """The content of a file after a fault; None: it is gone."""
    kind = draw.choice(["gone", "cut", "zeros", "noise", "bits", "deep", "foreign", "field", "field", "field", "field"])
    if kind == "gone":
        return None
    if kind == "cut":
        return content[: draw.choice([0, 1, draw.randrange(len(content) + 1)])]
    if kind == "zeros":
        at = draw.randrange(len(content) + 1)
        return content[:at] + bytes(len(content) - at)
    if kind == "noise":
        return draw.randbytes(draw.choice([1, 100, 10_000]))
    if kind == "deep":
        letter = draw.choice(["[", "{", '{"a":', "- ", "? ", "a: [", "&a [*a, "])
        return (letter * draw.choice([2_000, 200_000])).encode()
    if kind == "foreign":
        return draw.choice(
            [
                b"[]",
                b"{}",
                b"null",
                b"3",
                b'"text"',
                b"- 1\n- [2]\n",
                b"a: b\n",
                b"\xff\xfe\x00",
                b"--- !!python/object:os.x {}\n",
            ]
        )
    if kind == "field" and name.endswith((".json", ".jsonl")):
        lines = content.splitlines() if name.endswith(".jsonl") else [content]
        at = draw.randrange(len(lines))
        made = json.loads(lines[at])
        made = replaced(made, draw.choice(places(made)), draw.choice(ODD))
        lines[at] = json.dumps(made).encode()
        return b"\n".join(lines) + b"\n"
    if kind == "field" and name.endswith(".yaml"):
        lines = content.splitlines()
        at = draw.randrange(len(lines))
        before = lines[at].split(b":")[0]
        odd = [
            b": " + b"9" * 400,
            b": [",
            b": !!python/name:os.system",
            b": *x",
            b": {}",
            b": []",
            b": ${oc.env:HOME}",
            b"\t",
            b": 1e999",
        ]
        lines[at] = before + draw.choice(odd)
        return b"\n".join(lines) + b"\n"
    made = bytearray(content)
    for _ in range(draw.choice([1, 20])):
        made[draw.randrange(len(made))] ^= 1 << draw.randrange(8)
    return bytes(made)


@pytest.fixture(scope="module")
def runs(gradlab: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is complete, and one that failed."""
    folder = tmp_path_factory.mktemp("runs")
    assert gradlab(*SHORT, "hydra.run.dir=whole", "trainer.checkpoint_every=1", "expect=any", cwd=folder).code == 0
    failed = gradlab(
        *SHORT,
        "optimizer=sgd",
        "optimizer.lr=1e30",
        "model.activation=relu",
        "model.bias=false",
        "hydra.run.dir=failed",
        "expect=any",
        "trainer.epochs=9",
        cwd=folder,
    )
    assert failed.code == 0 and (folder / "failed" / "crash.pt").is_file(), failed
    return folder


@pytest.mark.slow
def test_readers_answer_in_a_line(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    draw, faults = random.Random(SEED), []
    shutil.copytree(runs / "whole", "other")
    counts: dict[Any, int] = {}
    for case in range(CASES):
        shutil.rmtree("run", ignore_errors=True)
        shutil.copytree(runs / draw.choice(["whole", "failed"]), "run")
        files = sorted(
            str(p) for p in Path("run").rglob("*") if p.is_file() and p.suffix in (".json", ".jsonl", ".yaml")
        )
        said = []
        for name in draw.sample(files, draw.choice([1, 1, 3])):
            path = Path(name)
            if content := path.read_bytes():
                new = damaged(draw, path.name, content)
                path.unlink() if new is None else path.write_bytes(new)
                said.append(f"{path}: {(new or b'')[:60]!r} ({len(new or b'')})")
        for reader, arguments in READERS:
            where = f"case {case} {reader.__module__} {arguments} {said}"
            try:
                code = reader(list(arguments))
            except BaseException:
                faults.append(f"{where}\n{traceback.format_exc(limit=-4)}")
                continue
            out = capsys.readouterr()
            counts[code] = counts.get(code, 0) + 1
            if (
                code not in (0, 2)
                or (code == 2 and not 1 <= len(out.err.splitlines()) <= 2)
                or "\x1b" in out.out + out.err
            ):
                faults.append(f"{where}: {code}\n{out.err[-500:]}")
            if reader is listing.main and "other" not in out.out and "--filter" not in arguments:
                faults.append(f"{where}: the other run is not listed")
    print(counts)
    assert not faults, f"{len(faults)} of {CASES * len(READERS)}\n" + "\n".join(faults[:5])


@pytest.mark.parametrize("odd", [10**400, "NaN"], ids=["huge", "nan"])
def test_a_number_that_a_field_does_not_take_is_answered_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], odd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    told, line, answered = made.diagnosis(), made.line(3, 1.0), set[int]()
    made.run(tmp_path / "run", [made.line(1, 3.0), made.line(2, 2.0)], told)
    metrics, diagnosis = tmp_path / "run" / "metrics.jsonl", tmp_path / "run" / "diagnosis.json"
    before = metrics.read_text()
    damaged = [(told, replaced(line, place, odd)) for place in places(line)[1:]]
    damaged += [(replaced(told, place, odd), line) for place in places(told)[1:]]
    for one, other in damaged:
        diagnosis.write_text(json.dumps(one))
        metrics.write_text(f"{before}{json.dumps(other)}\n")
        for reader, arguments in ((listing.main, ["."]), (show.main, ["run"]), (report.main, ["run"])):
            answered.add(code := reader(arguments))
            assert len(capsys.readouterr().err.splitlines()) == (code == 2)
    assert answered == {0, 2}
