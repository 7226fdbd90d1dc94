"""What README and docs say can be typed: commands compose, flags exist, examples parse, links lead somewhere."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import io
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import hydra
import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

from gradlab.base.command import key
from gradlab.base.conf import conf_dir
from gradlab.cli.arguments import normal
from gradlab.config.compose import compose, register
from gradlab.config.remedy import treated

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
ELSEWHERE = ("my_conf", "my_package", "=mine")
"""Names of the reader's own files: such commands are not composed here."""


def commands() -> list[list[str]]:
    """Every command that starts gradlab, as the list of words from `gradlab` or `gradlab.NAME` on."""
    found = []
    for page in PAGES:
        text = page.read_text()
        lines = [line for kind, body in FENCE.findall(text) if kind == "bash" for line in logical_lines(body)]
        lines += re.findall(r"`((?:python|torchrun) [^`]+)`", FENCE.sub("", text))
        for line in lines:
            for part in re.split(r"&&|;", line):
                words = shlex.split(part, comments=True)
                at = next(
                    (i for i, w in enumerate(words) if i and words[i - 1] == "-m" and w.startswith("gradlab")), None
                )
                if at is not None:
                    found.append(words[at:])
    return found


def logical_lines(body: str) -> list[str]:
    return body.replace("\\\n", " ").splitlines()


COMMANDS = commands()
RUNS = sorted({tuple(words[1:]) for words in COMMANDS if words[0] == "gradlab"})
OTHERS = sorted({tuple(words) for words in COMMANDS if words[0] != "gradlab"})


@pytest.fixture(scope="module", autouse=True)
def hydra_session() -> Iterator[None]:
    register()
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield


def first_job(overrides: list[str]) -> list[str]:
    """The overrides of a sweep's first job, without those that concern Hydra itself."""
    job = []
    for override in OverridesParser.create().parse_overrides(overrides):
        text = str(override.input_line)
        if key(text).startswith("hydra"):
            continue
        if override.is_interval_sweep():  # Optuna's
            job.append(f"{key(text)}={override.value().start}")
            continue
        value = next(iter(override.sweep_string_iterator()), "") if override.is_sweep_override() else None
        job.append(text if value is None else f"{text.partition('=')[0]}={value}")
    return job


@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_a_documented_run_composes(words: tuple[str, ...]) -> None:
    overrides = [w for w in words if "=" in w and not w.startswith("--")]
    if any("..." in w or key(w) == "resume" or any(name in w for name in ELSEWHERE) for w in words):
        pytest.skip("names a folder or a package of the reader's")
    if any("optuna" in w for w in words) and importlib.util.find_spec("optuna") is None:
        pytest.skip("Optuna is not installed")
    overrides = first_job(list(map(normal, overrides)))
    treated(compose(overrides), overrides)  # raises what a run would


@pytest.mark.parametrize("words", OTHERS, ids=" ".join)
def test_a_documented_command_has_these_flags(words: tuple[str, ...]) -> None:
    flags = [w for w in words if w.startswith("--")]
    name = f"{words[0]}.__main__" if (ROOT / words[0].replace(".", "/")).is_dir() else words[0]
    main = importlib.import_module(name).main
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main(["--help"])
    missing = [flag for flag in flags if flag not in said.getvalue()]
    assert not missing, f"{words[0]} has no {missing}"


def test_examples_in_other_languages_parse() -> None:
    parsers = {"python": ast.parse, "toml": tomllib.loads, "yaml": yaml.safe_load, "json": json.loads}
    parsed = 0
    for page in PAGES:
        for kind, body in FENCE.findall(page.read_text()):
            if kind in parsers:
                parsers[kind](body)
                parsed += 1
    assert parsed >= 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", FENCE.sub("", page.read_text())):
        assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"`((?:gradlab|tests|experiments|conf|docs)/[\w/.-]+)`", FENCE.sub("", page.read_text()))
    assert not [name for name in named if not ("my_" in name or "NAME" in name or (ROOT / name).exists())]


def test_the_readme_fits_on_one_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


def test_the_glossary_has_one_row_for_each_term() -> None:
    terms = re.findall(r"^\| ([^|]+?) \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    terms = [t.strip().lower() for t in terms if set(t) - set("- ") and t.strip() != "term"]
    assert len(terms) == len(set(terms)) > 40
