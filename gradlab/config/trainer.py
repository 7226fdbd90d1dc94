"""The fields of `trainer=`; the run itself is in gradlab/train/trainer.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from gradlab.base.limits import MOST_AT_ONCE
from gradlab.base.option import at_least, one_of, option, require


@option("trainer", "default")
@dataclass
class TrainerOption:
    """How long a run is, where it runs and what it leaves behind."""

    epochs: int = 5
    """Passes over the training set; the run ends at `epochs` or at `updates`, whichever comes first."""
    updates: Optional[int] = None
    """Applied updates; null: no limit."""
    ema: Optional[float] = None
    """Decay of an exponential moving average of the weights, such as 0.999, which is evaluated in their place; null:
    none."""
    evaluate_every: int = 1
    """Epochs between two evaluations on the test set; 0: never."""
    hopeless: Optional[float] = None
    """End a run whose loss has been this many times its first, or not finite, for `patience` updates; null: never."""
    patience: int = 20
    """Updates in a row after which such a run is given up."""
    checkpoint_every: int = 0
    """Updates between two checkpoints; 0: only at the end."""
    device: str = "auto"
    """auto: cuda where there is one."""
    threads: Optional[int] = None
    """CPU threads of a rank; null: PyTorch's choice. Another number of threads adds up in another order."""
    compile: bool = False
    """Compile the model with torch.compile."""
    checkpoint_blocks: Optional[str] = None
    """Activation checkpointing: a regular expression of the names of modules whose forward pass is computed again in
    the backward pass, so that what is inside of them is not kept; null: none."""
    deterministic: bool = True
    """Choose deterministic kernels, so that the same configuration gives the same result."""
    find_unused_parameters: bool = False
    """Under DDP: needed by a model whose forward pass uses only some of its parameters; costs a walk of the graph."""
    parallel: str = "ddp"
    """On several ranks: ddp, each with the whole model; or fsdp, each with a part of every parameter, of its gradient
    and of the optimizer's state (PyTorch's fully_shard)."""
    fsdp_blocks: Optional[str] = None
    """Under fsdp: a regular expression of the names of modules that are gathered one at a time; null: the children of
    every ModuleList and Sequential that is not in another."""
    fsdp_reshard: bool = True
    """Under fsdp: whether blocks are gathered again for the backward pass; false: faster, with more memory."""
    fsdp_half: bool = False
    """Under fsdp in bf16 or fp16: gather in that type: half the traffic and memory, but normalisations and the residual
    stream, which autocast keeps in fp32, round too."""
    fsdp_replicas: int = 1
    """Under fsdp: parameters are divided among the ranks of each of so many groups, which hold the same (HSDP). As many
    as hosts: only sums of gradients pass between hosts."""
    sync_batch_norm: bool = False
    """Under DDP on CUDA: batch norm over all ranks (SyncBatchNorm)."""
    progress: str = "auto"
    """auto: live in a terminal, plain lines elsewhere; live, plain, none."""

    def __post_init__(self) -> None:
        at_least(self, epochs=1, evaluate_every=0, patience=1, checkpoint_every=0, fsdp_replicas=1)
        require(self.updates is None or self.updates >= 1, "updates", self.updates, "null or >= 1")
        require(self.ema is None or 0 < self.ema < 1, "ema", self.ema, "null or in (0, 1)")
        require(self.hopeless is None or self.hopeless > 1, "hopeless", self.hopeless, "null or > 1")
        few = self.threads is None or 1 <= self.threads <= MOST_AT_ONCE
        require(few, "threads", self.threads, f"null or in [1, {MOST_AT_ONCE}]")
        one_of("parallel", self.parallel, ("ddp", "fsdp"))
        one_of("device", self.device, ("auto", "cpu", "cuda"))
        one_of("progress", self.progress, ("auto", "live", "plain", "none"))
