"""Trainers of other libraries with one line added: no mistakes, bitwise the same, and a run folder."""

import copy
from contextlib import nullcontext

import pytest
import torch
from helpers import weights
from torch import nn
from torch.nn import functional as F
from watched_loops import batches, loss_of, net

import gradlab.integrations
from gradlab.base.json_lines import read_lines
from gradlab.watch.patches import PATCHES

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec")  # Lightning's

QUIET = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False, "logger": False}


def loader(count):
    return torch.utils.data.DataLoader(list(batches(count)), batch_size=None)


@pytest.mark.parametrize("count", [8, 7])
def test_lightning(tmp_path, count, capsys):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, index):
            return loss_of(self.net, batch)

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]

    def fit(*callbacks):
        module = Module()
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=3,
            accumulate_grad_batches=2,
            gradient_clip_val=0.5,
            callbacks=list(callbacks),
            default_root_dir=tmp_path,
            **QUIET,
        )
        trainer.fit(module, loader(count))
        return weights(module)

    callback = gradlab.integrations.LightningWatch(folder=tmp_path / "run", every=1, step_every=2)
    assert torch.equal(fit(), fit(callback))
    assert not callback.watch.broken
    # Lightning divides a remainder by the full number.
    assert [s.name for s in callback.watch.faults] == ["remainder-underscaled"] * (count % 2)
    lines = list(read_lines(tmp_path / "run" / "metrics.jsonl"))
    assert len(lines) == 12
    assert all(line["train/loss"] > 0 for line in lines)
    assert any("update/ratio" in line for line in lines)
    assert not PATCHES
    assert "verdict" in capsys.readouterr().out


def test_a_lightning_training_that_raises(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, index):
            if index == 3:
                raise ZeroDivisionError("stop")
            return loss_of(self.net, batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = gradlab.integrations.LightningWatch(folder=tmp_path / "run", quiet=True)
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, callbacks=[callback], **QUIET)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(Module(), loader(8))
    assert callback.watch.status == "failed"
    assert not PATCHES
    assert (tmp_path / "run" / "report.html").is_file()


class Wrapped(nn.Module):
    """A model with the interface that Hugging Face's Trainer calls."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x, labels):
        out = self.net(x)
        return {"loss": F.cross_entropy(out, labels), "logits": out}


def test_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    data = [{"x": x, "labels": y} for xs, ys in batches(6) for x, y in zip(xs, ys, strict=True)]

    def train(*callbacks):
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"),
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_train_epochs=2,
            max_grad_norm=0.5,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        model = Wrapped()
        transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=list(callbacks)).train()
        return weights(model)

    callback = gradlab.integrations.TransformersWatch(folder=tmp_path / "run", quiet=True)
    assert torch.equal(train(), train(callback))
    assert not callback.watch.broken
    assert callback.watch.faults == []
    lines = list(read_lines(tmp_path / "run" / "metrics.jsonl"))
    assert len(lines) == 12
    assert all(0 < line["clip/coefficient"] < 1 or line["grad/norm"] <= 0.5 for line in lines)
    assert not PATCHES


@pytest.mark.parametrize("divided", [True, False])
def test_accelerate(tmp_path, divided):
    accelerate = pytest.importorskip("accelerate")

    def train(watched):
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model, optimizer = accelerator.prepare(model, optimizer)
        with watched(accelerator, model, optimizer) as watch:
            for batch in batches(8):
                with accelerator.accumulate(model):
                    loss = loss_of(model, batch)
                    accelerator.backward(loss if divided else loss / 2)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    optimizer.zero_grad()
        return weights(model), watch

    alone, _ = train(lambda *parts: nullcontext())
    watched, watch = train(
        lambda *parts: gradlab.integrations.accelerate_watch(*parts, folder=tmp_path / "run", quiet=True)
    )
    assert torch.equal(alone, watched)
    assert not watch.broken
    assert [s.name for s in watch.faults] == ([] if divided else ["loss-divided-twice"])
    assert watch.loop.outputs[0].num_updates == 4
    copy.deepcopy(watch.loop.models[0])
