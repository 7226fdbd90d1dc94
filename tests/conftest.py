"""One thread a process, here and in the processes that tests start: several share two cores."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before PyTorch is imported; children inherit it

import torch

torch.set_num_threads(1)
