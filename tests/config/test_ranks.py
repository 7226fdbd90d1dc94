"""Ranks compare what decides a run, and only that."""

from pathlib import Path

import pytest

from gradlab.base.distributed import World
from gradlab.base.option import Invalid
from gradlab.config.ranks import check_alike, compared, differences, refusal

PLAIN = {"clip": {"max_norm": 1.0}, "seed": 0, "data": {"path": None}, "logger": {"wandb": {"name": "a"}}}


def told(*ranks: dict[str, object], chosen: tuple[str, ...] = ()) -> str:
    options = chosen or ("norm",) * len(ranks)
    fields = [compared({**PLAIN, **given}, {"clip": clip}) for given, clip in zip(ranks, options, strict=True)]
    found = differences(fields)
    return str(refusal(found)) if found else ""


def test_the_field_its_values_and_their_ranks_are_named() -> None:
    said = told({}, {"clip": {"max_norm": 2.0}}, {}, {"clip": {"max_norm": 2.0}})
    assert said == "clip.max_norm=1.0 on ranks 0, 2, 2.0 on ranks 1, 3: must be the same on all ranks"


def test_another_option_is_named_without_its_fields() -> None:
    assert told({}, {"clip": {"max_value": 2.0}}, chosen=("norm", "value")).startswith("clip=norm on rank 0, value on")
    assert "max_" not in told({}, {"clip": {"max_value": 2.0}}, chosen=("norm", "value"))
    assert told({}, {}, chosen=("norm", "per_layer")), "two options with the same fields are not one"


def test_many_differences_take_two_lines() -> None:
    said = told({}, {"seed": 1, "a": 1, "b": 2, "c": 3, "d": 4})
    assert len(said.splitlines()) == 2 and "and 1 other fields" in said and "=missing on rank 0, 1 on rank 1" in said


def test_loggers_and_folders_of_a_host_may_differ(tmp_path: Path) -> None:
    places = [tmp_path / host / "data" for host in "ab"]
    for place in places:
        place.mkdir(parents=True)
    ranks = [{"data": {"path": str(p)}, "logger": {"wandb": {"name": str(p)}}, "story": str(p)} for p in places]
    assert told(*ranks) == ""
    assert "data.path=data on rank 0, other on rank 1" in told(ranks[0], {"data": {"path": "other"}})


class Two(World):
    """A rank whose other one has 1 more of what it gathers."""

    def gather(self, value: object) -> list[object]:
        other = f"{value} " if isinstance(value, str) else {**value, "seed": "1"}  # type: ignore[dict-item]
        return [value, other]


def test_a_world_of_one_is_not_asked_and_one_of_two_is_refused() -> None:
    check_alike(PLAIN, {}, World())
    with pytest.raises(Invalid, match="seed=0 on rank 0, 1 on rank 1"):
        check_alike(PLAIN, {}, Two(0, 2))
