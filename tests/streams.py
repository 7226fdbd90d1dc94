"""Data sets, models and losses that tests of streamed data name in a configuration."""

import os
import random
import time
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset


def drawn(samples: int, features: int = 6) -> tuple[Tensor, Tensor]:
    """The same vectors and their classes at every call, whatever the generators are at."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(samples, features, generator=draw)
    return x, (x[:, :3]).argmax(1)


class Augmented(Dataset[tuple[Tensor, int]]):
    """Vectors with noise that every reading draws anew, from all three generators."""

    classes = ("a", "b", "c")

    def __init__(self, samples: int = 22, noise: float = 0.1, wrong: str = "") -> None:
        self.x, self.y = drawn(samples)
        self.noise, self.wrong = noise, wrong

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        import numpy

        if self.wrong == "raises" and i == 17:
            raise KeyError("no such file")
        if self.wrong == "dies" and i == 17 and torch.utils.data.get_worker_info() is not None:
            time.sleep(0.2)
            os.kill(os.getpid(), 9)
        if not self.noise:
            return self.x[i], int(self.y[i])
        noise = torch.randn(6) + random.random() + float(numpy.random.rand())
        return self.x[i] + self.noise * noise, int(self.y[i]) + 5 * (self.wrong == "class" and i == 17)


def augmented(**kwargs: Any) -> Any:
    return Augmented(**kwargs), Augmented(10, noise=0.0)


def sentences(samples: int = 22) -> Any:
    """Dictionaries of lists of unequal lengths, as a tokenizer leaves them."""
    draw = torch.Generator().manual_seed(1)
    made = []
    for length in torch.randint(2, 9, (samples,), generator=draw).tolist():
        tokens = torch.randint(1, 11, (length,), generator=draw).tolist()
        made.append({"input_ids": tokens, "labels": [-100, *tokens[1:]], "name": "not for the model"})
    made[3]["labels"] = [-100] * len(made[3]["labels"])
    return made, made[:6]


def padded(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """A collate function: tokens, a mask and labels as long as the longest."""
    longest = max(len(s["input_ids"]) for s in samples)

    def fill(key: str, value: int) -> Tensor:
        return torch.tensor([s[key] + [value] * (longest - len(s[key])) for s in samples])

    ids = fill("input_ids", 0)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": fill("labels", -100)}


def unnamed() -> Any:
    """As `sentences`, without what a packed row has no place for."""
    return tuple([{k: v for k, v in sample.items() if k != "name"} for sample in part] for part in sentences())


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 12, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))


def lengths(samples: list[dict[str, Any]]) -> list[int]:
    return [len(s["input_ids"]) for s in samples]


def elements(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """The loss of each token, and 0 where there is none."""
    return F.cross_entropy(outputs.transpose(1, 2), batch["labels"], reduction="none", ignore_index=-100)


def counted(batch: dict[str, Tensor]) -> Tensor:
    return (batch["labels"] != -100).sum()


class Tagger(nn.Module):
    """Keywords -> logits of each token, and the mean loss where it is given labels, as Hugging Face's models do."""

    def __init__(self, shifted: bool = False) -> None:
        super().__init__()
        self.embedding, self.out, self.shifted = nn.Embedding(11, 8), nn.Linear(8, 11), shifted

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.out(self.embedding(input_ids) * attention_mask[..., None])
        if labels is None:
            return {"logits": logits}
        x, y = (logits[:, :-1], labels[:, 1:]) if self.shifted else (logits, labels)
        return {"loss": F.cross_entropy(x.flatten(0, 1), y.flatten(), ignore_index=-100), "logits": logits}


def own(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """The loss of each sample of a whole batch."""
    losses = F.cross_entropy(outputs.transpose(1, 2), batch["labels"], reduction="none", ignore_index=-100)
    return losses.sum(1)


class Net(nn.Sequential):
    """Vectors -> logits of three classes, with dropout, which draws from the generator of the run."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3))


class Endless(torch.utils.data.IterableDataset[tuple[Tensor, int]]):
    """A stream of augmented samples, without a length."""

    def __init__(self, samples: int) -> None:
        self.inner, self.epoch = Augmented(samples), 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        for i in torch.randperm(len(self.inner)).tolist():
            yield self.inner[i]


class FaultyOnRank1(Dataset[tuple[Tensor, int]]):
    """Vectors, of which one cannot be read on rank 1: it raises, or ends the worker that reads it."""

    def __init__(self, how: str) -> None:
        self.x, self.y = drawn(200)
        self.how = how

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        if os.environ.get("RANK") == "1" and i == 77:
            if self.how == "raises":
                raise KeyError("no such file")
            if torch.utils.data.get_worker_info() is not None:
                os._exit(9)
        return self.x[i], int(self.y[i])


class ShortOnRank1(torch.utils.data.IterableDataset[tuple[Tensor, int]]):
    """A stream that ends early on rank 1."""

    def __iter__(self) -> Any:
        for x, y in list(zip(*drawn(200), strict=True))[: 60 if os.environ.get("RANK") == "1" else 200]:
            yield x, int(y)


def faulty_on_rank1(how: str) -> Any:
    return (ShortOnRank1() if how == "ends" else FaultyOnRank1(how)), None


def splits() -> Any:
    """As `load_dataset` of Hugging Face returns them."""
    return {"train": sentences()[0], "test": sentences()[1]}


def texts() -> Any:
    return [{"text": "a sentence", "label": i % 3} for i in range(22)], None


def loaders(stream: bool = False, samples: int = 22) -> Any:
    """A user's own DataLoader, or a stream."""
    if stream:
        return Endless(samples), Endless(10)
    load = torch.utils.data.DataLoader
    return load(Augmented(samples), batch_size=4, shuffle=True), load(Augmented(10, noise=0.0), batch_size=8)


def mean_of_samples(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return own(outputs, batch).mean()


def pair(outputs: Tensor, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The sum over tokens that are not padding, and their number."""
    return elements(outputs, batch).sum(), counted(batch)


def tokens_alone(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """The loss of each token that is not padding, of all samples in a row."""
    return elements(outputs, batch)[batch["labels"] != -100]


def terms(outputs: Tensor, batch: dict[str, Tensor]) -> dict[str, Any]:
    """Means over tokens, over the samples, and over the words of two letters or more."""
    mask = batch["attention_mask"]
    sizes = (outputs.square().mean(2) * mask).sum(1) / mask.sum(1)
    words = (batch["input_ids"] > 5).float()
    return {
        "tokens": pair(outputs, batch),
        "size": sizes,
        "mean": sizes.sqrt().mean(),
        "words": ((outputs[:, :, 0] * words).sum(), words.sum()),
    }


def early_terms(outputs: Tensor, batch: dict[str, Tensor]) -> dict[str, Any]:
    """The same, of which `counted_terms` says the numbers."""
    found = terms(outputs, batch)
    return found | {name: found[name][0] / found[name][1].clamp(min=1) for name in ("tokens", "words")}


def counted_terms(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"tokens": counted(batch), "words": (batch["input_ids"] > 5).sum()}


def counted_wrongly(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"token": counted(batch)}


NUMBER = 3
"""No function."""


def mistaken(outputs: Any, batch: Any = None) -> Any:
    """Of a loss, of counts or of lengths."""
    return mask_of(outputs if batch is None else batch)


def mask_of(batch: Any) -> Any:
    return batch["msak"]


def halves(samples: list[dict[str, Any]]) -> list[float]:
    """Lengths that are no whole numbers."""
    return [n + 0.5 for n in lengths(samples)]


def uneven() -> Any:
    x, y = drawn(22)
    return x, y[:20]


class TimeMajor(Tagger):
    """Logits whose first dimension is time, and whose second are the samples."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = super().forward(input_ids, attention_mask)["logits"]
        return {"logits": logits.transpose(0, 1)[..., :1]}


def of_time_major(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """The loss of each element, whose shape is (B, T)."""
    return (outputs[..., 0].T - batch["input_ids"]).square()


def unlike(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """A loss of a sample that depends on the others of its batch."""
    each = outputs.mean((1, 2))
    return (each[:, None] - each[None]).square().mean()


def broadcast(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """(B, 1) and (B,) make (B, B)."""
    return (outputs.mean((1, 2))[:, None] - batch["input_ids"].float().mean(1)).square()


def strange(outputs: Tensor, batch: dict[str, Tensor]) -> dict[str, Any]:
    return {"ce": outputs.mean(), "kl": "0.1"}


def elements_of_terms(outputs: Tensor, batch: dict[str, Tensor]) -> dict[str, Any]:
    return {"ce": elements(outputs, batch), "size": outputs.square().mean()}


class Noisy(Tagger):
    """With dropout, and with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.norm = nn.Dropout(0.2), nn.BatchNorm1d(8)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x = self.norm(self.drop(self.embedding(input_ids) * attention_mask[..., None]).transpose(1, 2))
        return {"logits": self.out(x.transpose(1, 2))}


def copied() -> Any:
    """Tokens that are their own labels."""
    first, second = ([{**s, "labels": s["input_ids"]} for s in part] for part in sentences())
    return first, second


def rated(samples: int = 22) -> Any:
    """Dictionaries with a number as their target."""
    x, _ = drawn(samples)
    return [{"x": row, "label": row.sum()} for row in x], None


def distance(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return (outputs - batch["label"]).square()


class Rater(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, 0]


def pixels(samples: int = 16) -> Any:
    """Pictures, and which third of the numbers each pixel is in."""
    x = torch.randn(samples, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    data = x, (x[:, 0] > -0.4).long() + (x[:, 0] > 0.4).long()
    return data, data


def pixel_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 16, 1), nn.Tanh(), nn.Conv2d(16, 3, 1))


class Seeking(torch.utils.data.IterableDataset[tuple[Tensor, int]]):
    """A stream that knows its place, and goes on from there whoever broke it off; with noise that each reading draws.

    read: how many samples were ever read of it, for tests of what a resumption reads.
    """

    def __init__(self, samples: int, wrong: str = "", noise: float = 0.1) -> None:
        self.x, self.y = drawn(samples)
        self.wrong, self.noise, self.place, self.epoch, self.read = wrong, noise, 0, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(self.epoch)).tolist()
        while self.place < len(order):
            i = order[self.place]
            self.place, self.read = self.place + 1, self.read + 1
            yield self.x[i] + self.noise * torch.randn(6), int(self.y[i])
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "as": os.stat_result(range(10)) if self.wrong == "unsafe" else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = 0 if self.wrong == "forgets" else state["place"]


def seeking(samples: int = 22, **kwargs: Any) -> Any:
    return Seeking(samples, **kwargs), Seeking(10)


def torchdata_loaders(workers: int = 0, stream: bool = False, generator: bool = False, noise: float = 0.1) -> Any:
    """Loaders that know their place."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    own = torch.Generator() if generator else None
    chosen = {} if stream else {"shuffle": True, "generator": own}
    made: Any = Seeking(22, noise=noise) if stream else Augmented(22, noise=noise)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it calls what PyTorch 2.15 calls deprecated
        return StatefulDataLoader(made, batch_size=4, num_workers=workers, **chosen), None


def hugging_face(streaming: bool = False, shuffled: bool = False) -> Any:
    """`sentences` as Hugging Face's data sets, of which a stream shuffles within a buffer."""
    import datasets

    train, test = map(datasets.Dataset.from_list, sentences())
    if not streaming:
        return train, test
    train, test = train.to_iterable_dataset(num_shards=2), test.to_iterable_dataset()
    return train.shuffle(seed=0, buffer_size=8) if shuffled else train, test
