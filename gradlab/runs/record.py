"""What a run left in its folder, as one object: `RunRecord`. What lists, shows, compares and judges runs reads
their folders by it alone.

A part that is missing reads as empty, and so does one that cannot be read: see `FolderFiles`.
"""

from __future__ import annotations

import math
import re
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from gradlab.base.errors import BAD_VALUES
from gradlab.base.fields import dotted, fields_of_yaml
from gradlab.base.json_lines import number
from gradlab.base.lock import locked
from gradlab.base.option import Invalid
from gradlab.runs.folder_files import FolderFiles, runs_below
from gradlab.runs.measured import lost_at, measured

if TYPE_CHECKING:
    from gradlab.diagnosis.replay.overflow import Overflow

STATES = ("running", "killed", "error", "does not apply", "broken", "pretrained")
"""What stands for the verdict of a run that has none. killed: it left no diagnosis.json and no process is at work.
error: a job of a sweep that could not run. does not apply: its remedy changes nothing. broken: what it left cannot be
read. pretrained: weights that other runs begin with."""
NUMBERS = ("updates", "planned", "loss", "eval_loss", "accuracy", "grad_norm", "skipped", "seconds", "exit_code")
"""The key numbers of a run. loss: the median of the last 20 updates, or of a fifth of a short run; grad_norm: the
largest before clipping."""
COUNTS = ("updates", "planned", "skipped", "exit_code")
"""Those that are whole."""
RUNNING, KILLED, ERROR, REFUSED, BROKEN, PRETRAINED = STATES
FILES = {
    "diagnosis.json": "diagnosis",
    "environment.json": "environment",
    "replay.json": "replay",
    "metrics.jsonl": "lines",
    "layers.jsonl": "layer_lines",
    ".hydra/config.yaml": "config",
    ".hydra/overrides.yaml": "typed",
    ".hydra/hydra.yaml": "hydra",
}
"""File -> the attribute of a record that is read from it."""
KINDS: dict[str, type] = {
    **dict.fromkeys(("verdict", "sentence"), str),
    **dict.fromkeys(("exit_code", "planned"), int),
    **dict.fromkeys(("outcome", "measured", "evidence", "remedy", "unchecked", "watch"), dict),
    **dict.fromkeys(("findings", "checked", "overrides", "remedies"), list),
}
"""What the parts of diagnosis.json are; any may be missing or null."""
PLAIN = re.compile(r"- \+{0,2}[a-zA-Z][^'\"#:\s]*")
"""A line of overrides.yaml that needs no YAML parser."""
REFERENCE = re.compile(r"\$\{([\w.]+)\}")


class RunRecord(FolderFiles):
    """A run, read from its folder: each file once, and when it is asked for."""

    parts = FILES

    def __init__(self, path: Path, config: dict[str, Any] | None = None) -> None:
        """config: the configuration as plain values, where it is at hand."""
        super().__init__(path)
        if config is not None:
            self.config, self.fields = config, dotted(config)

    # --- files -------------------------------------------------------------------------------------------------------

    @cached_property
    def diagnosis(self) -> dict[str, Any]:
        """diagnosis.json; numbers that are not finite are strings."""
        found = self.read_object("diagnosis.json")
        for name, kind in KINDS.items():
            if not isinstance(found.get(name), (kind, NoneType)):
                self.unreadable.setdefault("diagnosis.json", f"its {name} is no {kind.__name__}")
        overrides = found.get("overrides")
        if isinstance(overrides, list) and not all(isinstance(o, str) for o in overrides):
            self.unreadable.setdefault("diagnosis.json", "its overrides are not text")
        return {} if "diagnosis.json" in self.unreadable else found

    @cached_property
    def environment(self) -> dict[str, Any]:
        return self.read_object("environment.json")

    @cached_property
    def replay(self) -> dict[str, Any]:
        return self.read_object("replay.json")

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return self.read_lines("metrics.jsonl")

    @cached_property
    def layer_lines(self) -> list[dict[str, Any]]:
        """The lines of layers.jsonl."""
        return self.read_lines("layers.jsonl")

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration that ran, as nested plain values."""
        found = self.read_yaml(".hydra/config.yaml") or self.read_yaml("config.yaml")
        if isinstance(found, dict) and isinstance(story := found.get("story"), str):  # Hydra writes it unresolved
            found["story"] = REFERENCE.sub(lambda name: str(self.fields.get(name[1], name[0])), story)
        return found if isinstance(found, dict) else {}

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Dotted field -> value of the configuration that ran; scalars only."""
        return fields_of_yaml(self.read_text(".hydra/config.yaml") or self.read_text("config.yaml"))

    @cached_property
    def typed(self) -> list[str]:
        """The overrides as typed; most files are read without YAML's slow parser."""
        lines = self.read_text(".hydra/overrides.yaml").splitlines()
        if all(PLAIN.fullmatch(line) for line in lines):
            return [line[2:] for line in lines]
        found = self.read_yaml(".hydra/overrides.yaml")
        if isinstance(found, list) and all(isinstance(o, str) and not o.startswith("-") for o in found):
            return found
        self.unreadable.setdefault(".hydra/overrides.yaml", "it holds no list of overrides")
        return []

    @cached_property
    def choices(self) -> dict[str, str]:
        """Group -> option, without Hydra's own groups; where a remedy has changed an option, the new one.

        Not by a YAML parser, which takes longer than all the rest.
        """
        block = re.search(r"^    choices:\n((?:      .*\n)+)", self.read_text(".hydra/hydra.yaml"), re.MULTILINE)
        pairs = re.findall(r"^      ([\w-]+): (.+)$", block[1], re.MULTILINE) if block else []
        choices = {group: name.strip("'\"") for group, name in pairs if name != "null"}
        changed = self.remedy.get("changed") or {}
        return choices | {name: new for name, (_, new) in changed.items() if name in choices}

    @cached_property
    def hydra(self) -> dict[str, Any]:
        """What Hydra wrote of itself."""
        return self.read_hydra(".hydra/hydra.yaml")

    @property
    def config_dirs(self) -> list[str]:
        """The folders of configurations that the run was given by --config-dir."""
        if "command-line" not in self.read_text(".hydra/hydra.yaml"):
            return []
        sources = (self.hydra.get("runtime") or {}).get("config_sources") or []
        return [str(s.get("path")) for s in sources if isinstance(s, dict) and s.get("provider") == "command-line"]

    # --- what they say -----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The last two parts of the path."""
        return "/".join(self.path.resolve().parts[-2:])

    @property
    def overrides(self) -> list[str]:
        """The overrides that decide the run."""
        return self.diagnosis.get("overrides") or self.typed

    @cached_property
    def updates(self) -> list[dict[str, Any]]:
        """The lines of updates."""
        return [line for line in self.lines if "train/loss" in line]

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """The lines of evaluations."""
        return [line for line in self.lines if "eval/loss" in line]

    @cached_property
    def layer_header(self) -> dict[str, Any]:
        """The first line of layers.jsonl: `names` of parameters, `order` of layers, `modules`; `recurrent`, `relus`."""
        empty: dict[str, Any] = {"names": [], "order": [], "modules": [], "recurrent": [], "relus": []}
        return empty | next((line for line in self.layer_lines if "names" in line), {})

    @property
    def layer_records(self) -> list[dict[str, Any]]:
        """The lines of layers.jsonl that hold gradient norms."""
        return [line for line in self.layer_lines if "grad/layer" in line]

    @property
    def verdict(self) -> str | None:
        return self.diagnosis.get("verdict")

    @property
    def outcome(self) -> dict[str, Any]:
        """How the run ended: see `train.trainer.Outcome`."""
        return self._part("outcome")

    @property
    def status(self) -> str | None:
        """completed, failed, given_up or interrupted; None of a run that has not ended."""
        return self.outcome.get("status")

    @property
    def remedy(self) -> dict[str, Any]:
        """What a remedy changed, or why it does not apply."""
        return self._part("remedy")

    @property
    def refused(self) -> bool:
        """Whether it is a job whose remedy does not apply."""
        return self.remedy.get("applies") is False

    @cached_property
    def sweep(self) -> Path | None:
        """The folder of the sweep that the run is a job of."""
        return next((p for p in self.path.resolve().parents if (p / "multirun.yaml").is_file()), None)

    @cached_property
    def state(self) -> str:
        """The verdict, or one of STATES."""
        numbers = self.numbers
        if "diagnosis.json" in self.unreadable or not numbers:
            return BROKEN
        if self.diagnosis:
            return self.verdict or (REFUSED if self.refused else ERROR)
        if locked(self.path) or (self.sweep is not None and locked(self.sweep)):
            return RUNNING
        # environment.json alone: of a watched loop
        began = any((self.path / name).exists() for name in (".hydra", "environment.json"))
        return KILLED if began else PRETRAINED

    @property
    def clip_threshold(self) -> float | None:
        """The max_norm to show with the global gradient norm; None unless that norm is what is clipped (clip=norm)."""
        shown = self.choices.get("clip") == "norm" and self.fields.get("clip.norm_type", 2) == 2
        found = self.fields.get("clip.max_norm") if shown else None
        return float(found) if isinstance(found, (int, float)) and math.isfinite(found) else None

    @cached_property
    def first_overflow(self) -> Overflow | None:
        """The first tensor that was not finite, as the replay of the failing update found it."""
        from gradlab.diagnosis.replay.overflow import Overflow

        content = number(self.diagnosis.get("first_overflow"))
        return Overflow.from_dict(content) if content else None

    @cached_property
    def measured(self) -> dict[str, Any]:
        """The numbers of the run's metrics that diagnosis.json keeps; computed where it has none."""
        kept = self.diagnosis.get("measured") or measured(self.updates, lost_at(self.diagnosis))
        return {name: number(value) for name, value in kept.items()}

    @cached_property
    def last_evaluation(self) -> dict[str, Any]:
        """The last evaluation since training began; empty if there was none."""
        seen = self.outcome.get("eval")
        return next((e for e in reversed(self.evaluations if seen is None else seen) if e.get("epoch")), {})

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """NUMBERS, None where not known; empty where what is there cannot be read."""
        try:
            kept, last = self.measured, self.last_evaluation
            values = (
                kept["updates"],
                self.diagnosis.get("planned"),
                kept["loss/final"],
                number(last.get("eval/loss")),
                number(last.get("eval/accuracy")),
                kept["grad/norm_max"],
                kept["skipped"],
                number(self.outcome.get("seconds")),
                self.diagnosis.get("exit_code"),
            )
            found = dict(zip(NUMBERS, values, strict=True))
            sound = all(
                v is None or (name not in COUNTS if isinstance(v, float) else abs(v) < 2**63)
                for name, v in found.items()
            )
        except BAD_VALUES:  # written by another program
            return {}
        return found if sound and "metrics.jsonl" not in self.unreadable else {}

    def _part(self, name: str) -> dict[str, Any]:
        """An object in diagnosis.json."""
        found = self.diagnosis.get(name)
        return found if isinstance(found, dict) else {}

    @classmethod
    def at(cls, path: Path, *needed: str, kinds: str = "of a run") -> RunRecord:
        """The run in a folder. Raises `Invalid` where that holds none of the files `needed`.

        kinds: of what it must be the folder, in the message.
        """
        if not path.is_dir():
            raise Invalid("FOLDER", path, "is a file" if path.exists() else "no such folder")
        if not any((path / name).exists() for name in needed):
            why = f"must be the folder {kinds} (it holds no metrics.jsonl){runs_below(path)}"
            raise Invalid("FOLDER", path, why)
        return cls(path)
