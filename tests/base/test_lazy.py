"""What is imported once and stays is passed over by the garbage collector, which is left as it was."""

import gc
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gradlab.base import distributed
from gradlab.base.lazy import import_uncollected


@pytest.mark.parametrize("enabled", [True, False])
def test_an_import_is_not_interrupted_by_collections_and_leaves_the_collector_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    (tmp_path / "many_objects.py").write_text(
        "import gc\nbefore = [s['collections'] for s in gc.get_stats()]\n"
        "kept = [[i] for i in range(20_000)]\n"
        "collected = [s['collections'] for s in gc.get_stats()] != before\n"
    )
    (tmp_path / "fails.py").write_text("raise ValueError('as it may')\n")
    monkeypatch.syspath_prepend(tmp_path)
    frozen, was = gc.get_freeze_count(), gc.isenabled()
    try:
        gc.enable() if enabled else gc.disable()
        module = import_uncollected("many_objects")
        assert not module.collected and gc.isenabled() is enabled
        assert gc.get_freeze_count() >= frozen + 20_000
        with pytest.raises(ValueError, match="as it may"):
            import_uncollected("fails")
        assert gc.isenabled() is enabled
    finally:
        gc.enable() if was else gc.disable()
        sys.modules.pop("many_objects", None)


OPTIMIZED_THEN_COMPILED = """
import sys
from gradlab.base.lazy import lazy_import
lazy_import("torch")
lazy_import("torch._dynamo")
import torch

def trained(model):
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]

torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
start = {name: value.clone() for name, value in model.state_dict().items()}
plain = trained(model)
assert "torch._dynamo.eval_frame" not in sys.modules, "an optimizer alone compiles nothing"
import gc
opened = [model]
asked = torch.optim.Optimizer.zero_grad.__wrapped__
assert vars(asked)["__dynamo_disable"] is asked
import torch._dynamo.config as config
assert sys.modules["torch._dynamo.config"] is config is torch._dynamo.convert_frame.config, "loaded once"
assert config.__spec__.origin.endswith("config.py")
assert any(thing is opened for thing in gc.get_objects()), "what was made before is still looked after"
assert torch._dynamo.disable(trained) is not trained, "what a user leaves out is left out"
model.load_state_dict(start)
compiled = trained(torch.compile(model, backend="eager"))
assert all(map(torch.equal, plain, compiled))
assert "torch._dynamo.eval_frame" in sys.modules and torch._dynamo.eval_frame.__file__
assert vars(asked)["__dynamo_disable"] is not asked, "the compiler leaves it out, as it does without a stand-in"
"""


def test_the_compiler_is_loaded_once_something_is_compiled() -> None:
    ended = subprocess.run([sys.executable, "-c", OPTIMIZED_THEN_COMPILED], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_leaving_the_process_group_begins_no_import_that_was_interrupted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def __getattr__(self, name: str) -> None:
            raise RuntimeError("imported twice")

    monkeypatch.setattr(distributed, "torch", Interrupted())
    monkeypatch.setitem(sys.modules, "torch.distributed", ModuleType("torch.distributed"))
    distributed.leave()
