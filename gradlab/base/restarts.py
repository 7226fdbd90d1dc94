"""torchrun's `--max-restarts`: a store for each start of the ranks, and what they leave for the next.

PyTorch gives the ranks of every start the same store, that of torchrun's agent, in which they find the addresses of
ranks that are gone (pytorch/pytorch#135712). Nor does the environment number the starts: each agent counts its own.
"""

from __future__ import annotations

import functools
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

FOLDER = "gradlab/folder"


@dataclass(frozen=True)
class Start:
    """One start of all ranks."""

    number: int
    """From 1."""
    agent: Store
    """The agent's store, which all starts share."""

    @property
    def store(self) -> Store:
        """A store of this start alone."""
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        return PrefixStore(f"gradlab/start_{self.number}", self.agent)

    def remember(self, folder: Path) -> None:
        """Leave the folder of the run, or of the sweep, that this command has begun."""
        self.agent.set(FOLDER, str(folder.absolute()))

    def left(self) -> Path | None:
        """The folder that ranks before these left; None where these are the first, or nothing had begun."""
        if self.number == 1 or not self.agent.check([FOLDER]):
            return None
        folder = Path(self.agent.get(FOLDER).decode())
        begun = any((folder / name).is_file() for name in (".hydra/overrides.yaml", "multirun.yaml"))
        return folder if begun else None


@functools.cache
def start() -> Start | None:
    """Where torchrun may start ranks again: this start, once a process, in which all ranks take part."""
    e = os.environ
    if e.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or int(e.get("TORCHELASTIC_MAX_RESTARTS", "0")) < 1:
        return None
    from torch.distributed import TCPStore, default_pg_timeout  # type: ignore[attr-defined]

    agent = TCPStore(e["MASTER_ADDR"], int(e["MASTER_PORT"]), is_master=False, timeout=default_pg_timeout)
    return Start(agree(agent, int(e["RANK"]), int(e["WORLD_SIZE"])), agent)


def agree(store: Store, rank: int, size: int) -> int:
    """The number of this start, on every rank; whatever ranks of earlier starts have left in the store.

    Each rank shows a token of its own. Rank 0 tells the number to every token that it sees, until all have taken it.
    """
    if rank:
        token = uuid4().hex
        store.set(f"gradlab/token_{rank}", token)
        number = int(store.get(f"gradlab/number_{token}"))
        store.set(f"gradlab/taken_{number}_{rank}", "")
        return number
    number, waiting = store.add("gradlab/starts", 1), set(range(1, size))
    while waiting:
        for other in sorted(waiting):
            if store.check([f"gradlab/token_{other}"]):
                store.set(f"gradlab/number_{store.get(f'gradlab/token_{other}').decode()}", str(number))
            if store.check([f"gradlab/taken_{number}_{other}"]):
                waiting.remove(other)
        time.sleep(0.01)
    return number
