"""TensorBoard's event files: the same names as everywhere, over `update`.

Written by TensorBoard's own record writer into a buffered file, not by its event writer: that one hands every event to
a thread, and the switching costs an update more than the writing does.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from gradlab.base.fields import dotted
from gradlab.base.json_lines import FLUSH_BYTES, FLUSH_SECONDS, number
from gradlab.loggers import rows
from gradlab.loggers.base import About
from gradlab.loggers.local import read_run
from gradlab.loggers.settings import TensorBoardSettings
from gradlab.loggers.summary import summary
from gradlab.update.recorder import Layers

FOLDER = "tensorboard"
NULL = "null"
BINS = 30
DISTRIBUTIONS = {
    "grad/layer": "grad/layers_log10",
    "update/ratio": "update/ratios_log10",
    "activation/rms": "activation/rms_log10",
    "activation/max": "activation/max_log10",
}
"""What of the layers is a histogram of its decimal logarithms (it differs by orders of magnitude), and its name."""
UNTOLD = ("diagnosis", "logger", "story", "remedy", "resume")
"""Parts of the configuration that are no hyperparameters."""
MEASURED = ("loss/final", "loss/best", "grad/norm_median", "grad/norm_max", "survived", "skipped")


class TensorBoardLogger:
    """One run of TensorBoard."""

    def __init__(self, option: TensorBoardSettings, about: About) -> None:
        self.option, self.about = option, about
        self.names = about.layers.get("names") or []
        self.update = self.next_look = 0
        folder = about.folder / FOLDER
        earlier = any(folder.glob("*tfevents*"))
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"  # sorts by time
        self.file = (folder / name).open("wb", buffering=FLUSH_BYTES)
        self.records, self.flushed = RecordWriter(self.file), time.monotonic()
        self.event(file_version="brain.Event:2")
        if about.lines:
            self.begin_again(earlier)

    def begin_again(self, earlier: bool) -> None:
        """Log again what a resumed run keeps: the file of a run that was killed lacks its end."""
        if earlier:
            self.event(session_log=SessionLog(status=SessionLog.START))  # what was logged from step 0 on is void
        for i, (line, layers) in enumerate(read_run(self.about.folder)):
            if i == self.about.lines:
                break
            self.log(line, layers)

    def event(self, **content: Any) -> None:
        event = Event(wall_time=time.time(), step=self.update, **content)
        self.records.write(event.SerializeToString())
        if (now := time.monotonic()) - self.flushed > FLUSH_SECONDS:
            self.file.flush()
            self.flushed = now

    def summary(self, values: Iterable[Summary.Value]) -> None:
        self.event(summary=Summary(value=values))

    def log(self, metrics: dict[str, Any], layers: Layers | None) -> None:
        """Every number of a line. NaN and Inf are kept; each is counted by a metric of its own too."""
        self.update = metrics["update"]
        numbers = rows.with_nonfinite(metrics)
        every = self.option.layers_every
        look = layers if every and layers and metrics["attempt"] >= self.next_look else None
        if look is not None:
            self.next_look = metrics["attempt"] + every
            numbers |= rows.of_layers(self.names, look, self.option.max_layers)
        values = [Summary.Value(tag=k, simple_value=v) for k, v in numbers.items() if v is not None]
        self.summary([*values, *distributions(look or {})])

    def finish(self, diagnosis: dict[str, Any], folder: Path) -> None:
        """The verdict: as text, as a hyperparameter to sort and filter by, and in numbers."""
        values = summary(diagnosis)
        numbers = {k: v for k, v in values.items() if isinstance(v, (int, float)) and k != "update"}
        kept = diagnosis.get("measured") or {}
        numbers |= {name: number(kept[name]) for name in MEASURED if kept.get(name) is not None}
        self.summary(Summary.Value(tag=f"run/{k}", simple_value=v) for k, v in numbers.items())
        self.summary([text("verdict", verdict_text(diagnosis, self.about.summarise(folder)))])
        words = {name: str(values[name]) for name in ("verdict", "status") if name in values}
        config = flat(self.about.config) | {k: v for k, v in self.about.choices.items() if k not in UNTOLD}
        self.event(summary=hparams_pb(config | words, trial_id=f"{folder.parent.name}/{folder.name}"))
        self.summary([session_end(values.get("status"))])
        if self.option.figures:
            self.summary(images(self.about.draw(folder)))
        self.records.close()


def distributions(layers: Layers) -> Iterable[Summary.Value]:
    """Histograms of what is recorded of all layers."""
    for name, tag in DISTRIBUTIONS.items():
        seen = [v for v in layers.get(name) or () if v is not None and 0 < v < math.inf]
        if seen:
            yield Summary.Value(tag=tag, histo=histogram(np.log10(seen)))


def flat(config: dict[str, Any]) -> dict[str, bool | float | str]:
    """Dotted field -> plain value; lists as text, null as «null»."""
    plain = dotted({name: value for name, value in config.items() if name not in UNTOLD})
    return {k: v if isinstance(v, (bool, int, float, str)) else NULL if v is None else str(v) for k, v in plain.items()}


def histogram(values: np.ndarray) -> HistogramProto:
    """A histogram with equal bins between the least and the largest."""
    counts, edges = np.histogram(values, bins=BINS)
    return HistogramProto(
        min=values.min(),
        max=values.max(),
        num=len(values),
        sum=values.sum(),
        sum_squares=np.square(values).sum(),
        bucket_limit=edges[1:].tolist(),
        bucket=counts.tolist(),
    )


def text(tag: str, content: str) -> Summary.Value:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=DT_STRING, string_val=[content.encode()], tensor_shape=shape)
    metadata = text_metadata.create_summary_metadata(display_name=tag, description="")
    return Summary.Value(tag=tag, tensor=tensor, metadata=metadata)


def verdict_text(diagnosis: dict[str, Any], lines: Sequence[str]) -> str:
    """The summary that ends the run, as Markdown that is shown word for word."""
    if diagnosis.get("verdict") is None:
        return f"    {(diagnosis.get('outcome') or {}).get('error') or 'ended without a verdict'}"
    return "\n".join(f"    {line}" for line in [f"verdict: {diagnosis['verdict']}", *lines])


def session_end(status: str | None) -> Summary.Value:
    succeeded = status in ("completed", "given_up", "interrupted")
    state = api_pb2.STATUS_SUCCESS if succeeded else api_pb2.STATUS_FAILURE
    data = plugin_data_pb2.HParamsPluginData(
        session_end_info=plugin_data_pb2.SessionEndInfo(status=state, end_time_secs=time.time())
    )
    metadata = hparams_metadata.create_summary_metadata(data)
    return Summary.Value(
        tag=hparams_metadata.SESSION_END_INFO_TAG, metadata=metadata, tensor=hparams_metadata.NULL_TENSOR
    )


def images(paths: Iterable[Path]) -> Iterable[Summary.Value]:
    """The run's figures."""
    for path in paths:
        if path.suffix == ".png":
            image = Summary.Image(encoded_image_string=path.read_bytes(), colorspace=4)  # the reader takes its size
            yield Summary.Value(tag=f"figures/{path.stem}", image=image)
