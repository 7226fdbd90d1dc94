"""Batches of DataLoaders in this process: which rows of their data sets they have."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import dataloader

from gradlab.watch.followed_update import tensors_in
from gradlab.watch.instrumentation import Instrumentation
from gradlab.watch.loop_state import LoopState
from gradlab.watch.patches import AfterCall


class LoaderObserver:
    """Tells the reader of drawn rows, in an update that it follows."""

    def __init__(self, loop: LoopState) -> None:
        self.loop = loop
        self.indices: Any = None
        """Those of the batch that is being put together."""

    def install(self, instrumentation: Instrumentation) -> None:
        instrumentation.patch(dataloader._BaseDataLoaderIter, "_next_index", self.on_index)
        instrumentation.patch(dataloader._SingleProcessDataLoaderIter, "_next_data", self.on_data)

    @property
    def is_followed(self) -> bool:
        followed = self.loop.followed
        return followed.tracker is not None and self.loop.drawn in followed.readers

    def on_index(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
        def after(result: Any, error: bool) -> None:
            self.indices = result

        return after if self.is_followed else None

    def on_data(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
        def after(result: Any, error: bool) -> None:
            given, self.indices = self.indices, None
            if isinstance(given, list) and all(type(each) is int for each in given):
                rows = [each for each in tensors_in([result]) if each.shape[:1] == (len(given),)]
                self.loop.seen.ask(self.loop.drawn.note_loaded, rows, torch.tensor(given), len(args[0]._dataset))

        return after if self.is_followed else None
