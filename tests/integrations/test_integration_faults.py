"""A mistake in the trainer of each library, reported at the user's own line."""

import subprocess
import sys

import pytest
import torch
from test_integrations import QUIET, Wrapped, loader
from torch.nn import functional as F
from watched_loops import batches, loss_of, marked, net

import gradlab.integrations

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec")  # Lightning's


def reported(watch):
    assert not watch.broken
    return [(fault.code, fault.site[0].co_filename, fault.site[1], fault.update) for fault in watch.faults]


def modules(lightning):
    class Base(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Divided(Base):
        def training_step(self, batch, index):  # here
            return loss_of(self.net, batch) / 2

    class ByHand(Base):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, index):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss_of(self.net, batch))
            optimizer.step()
            self.clip_gradients(optimizer, gradient_clip_val=0.5)  # here

    return Divided, ByHand


@pytest.mark.parametrize("which, code", [pytest.param(0, "GL302", marks=pytest.mark.slow), (1, "GL101")])
def test_lightning(which, code, tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    module = modules(lightning)[which]()
    callback = gradlab.integrations.LightningWatch(folder=tmp_path, quiet=True)
    given = {} if which else {"accumulate_grad_batches": 2}
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, callbacks=[callback], **QUIET, **given)
    trainer.fit(module, loader(8))
    assert reported(callback.watch) == [(code, __file__, marked(module.training_step), 1)]


def test_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    data = [{"x": x, "labels": y} for xs, ys in batches(6) for x, y in zip(xs, ys, strict=True)]

    class Divided(transformers.Trainer):
        def compute_loss(self, model, inputs, **given):  # here
            return model(**inputs)["loss"] / 2

    class Late(transformers.TrainerCallback):
        def on_optimizer_step(self, args, state, control, model, **parts):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # here

    for kind, late, code, line in (
        (Divided, [], "GL302", marked(Divided.compute_loss)),
        (transformers.Trainer, [Late()], "GL101", marked(Late.on_optimizer_step)),
    ):
        callback = gradlab.integrations.TransformersWatch(folder=tmp_path / code, quiet=True)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"),
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_train_epochs=1,
            max_grad_norm=0,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        kind(model=Wrapped(), args=arguments, train_dataset=data, callbacks=[callback, *late]).train()
        assert reported(callback.watch) == [(code, __file__, line, 1)]


def test_accelerate(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = net()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def loop():
        for x, y in batches(8):
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y) / 2)  # here
                optimizer.step()
                optimizer.zero_grad()

    with gradlab.integrations.accelerate_watch(accelerator, model, optimizer, folder=tmp_path, quiet=True) as watch:
        loop()
    assert reported(watch) == [("GL302", __file__, marked(loop), 1)]


def test_a_wrong_argument():
    pytest.importorskip("lightning.pytorch")
    with pytest.raises(TypeError, match=r"no argument 'fodler' .did you mean folder"):
        gradlab.integrations.LightningWatch(fodler="a")
    with pytest.raises(TypeError, match=r"no argument 'scaler' .*folder"):  # the trainer has one
        gradlab.integrations.LightningWatch(scaler=None)


FAILS = """
import torch
from gradlab.integrations.trainer_watch import TrainerWatch
model = torch.nn.Linear(2, 1)
TrainerWatch(folder="run").begin(model, torch.optim.SGD(model.parameters(), lr=0.1))
model(torch.ones(1, 2)).sum().backward()
raise ZeroDivisionError
"""


@pytest.mark.slow
def test_a_trainer_that_fails_without_a_callback_leaves_its_folder(gradlab, tmp_path):
    ended = gradlab.python("-c", FAILS, cwd=tmp_path).result()
    assert "verdict: not_measured" in ended.out and "ZeroDivisionError" in ended.err
    assert (tmp_path / "run" / "report.html").is_file()


def test_importing_gradlab_imports_no_trainer():
    run = (
        "import gradlab, sys; gradlab.integrations.LAZY; print({'torch', 'lightning', 'transformers'} & {*sys.modules})"
    )
    assert subprocess.run([sys.executable, "-c", run], capture_output=True, text=True).stdout == "set()\n"
