"""Wrong arguments of a watch."""

import pytest
from torch import nn
from torch.optim import SGD
from watched_loops import net

import gradlab
from gradlab.watch.patches import PATCHES


def test_wrong_arguments(tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    (tmp_path / "file").write_text("")
    for given, says in (
        ({"model": optimizer}, "model is a SGD, expected a torch.nn.Module"),
        ({"model": []}, "model is empty"),
        ({"model": model, "optimizer": model}, "optimizer is a Sequential, expected a torch.optim.Optimizer"),
        ({"model": model, "optimzer": optimizer}, "no argument 'optimzer' .did you mean optimizer"),
        ({"model": model, "optimizer": optimizer, "scaler": optimizer}, "scaler is a SGD, expected a torch.amp.Grad"),
        ({"model": model, "optimizer": optimizer, "schedule": model}, "schedule is a Sequential, expected one of"),
        ({"model": model, "optimizer": []}, "optimizer is empty"),
        ({"model": nn.LazyLinear(4)}, "model is a LazyLinear with uninitialized parameters"),
        ({"model": model, "optimizer": optimizer, "strict": "no"}, "strict is 'no', expected True or False"),
        ({"model": model, "optimizer": optimizer, "every": 0}, "every is 0, expected a whole number >= 1"),
        ({"model": model, "optimizer": optimizer, "folder": tmp_path / "file" / "a"}, "file is a file"),
        ({"model": model, "optimizer": optimizer, "folder": 3}, "folder is an int, expected a path"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^watch: .*{says}"):
            gradlab.watch(**given)
    assert not PATCHES
