"""Data: what each set returns, how an epoch is divided, and the errors that are found before the first update."""

from __future__ import annotations

import hashlib
import pickle
import re
import struct
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradlab.base.importing import load_object
from gradlab.base.option import Invalid
from gradlab.data.adding import AddingData
from gradlab.data.base import IGNORE, Split, Splits, TensorSplit, TokenSplit
from gradlab.data.check import check, targets_of
from gradlab.data.custom import CustomData
from gradlab.data.digits import DigitsData
from gradlab.data.order import epoch_order, window
from gradlab.data.spec import Spec
from gradlab.data.synthetic import SyntheticData
from gradlab.data.text import TextData
from gradlab.data.vision import CIFAR10Data, MNISTData

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


def whole(split: Split | None) -> tuple[torch.Tensor, torch.Tensor]:
    assert split is not None
    return split.batch(torch.arange(len(split)))


# The order of an epoch


@given(st.integers(1, 300), st.integers(0, 2**31 - 1), st.integers(0, 10_000))
def test_order_is_a_permutation_and_pure(samples: int, seed: int, epoch: int) -> None:
    before = torch.random.get_rng_state()
    order = epoch_order(samples, seed, epoch)
    assert order.dtype == torch.int64 and torch.equal(order.sort().values, torch.arange(samples))
    torch.rand(1)
    assert torch.equal(order, epoch_order(samples, seed, epoch))
    torch.random.set_rng_state(before)


def test_order_does_not_touch_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    epoch_order(10, 0, 0)
    assert torch.equal(before, torch.random.get_rng_state())


def test_orders_of_different_seeds_and_epochs_differ() -> None:
    orders = [epoch_order(100, seed, epoch) for seed in (0, 1, 2, 1 << 30) for epoch in range(50)]
    assert len({tuple(order.tolist()) for order in orders}) == len(orders)


@settings(max_examples=200)
@given(st.integers(1, 200), st.integers(1, 7), st.integers(1, 5), st.sampled_from([1, 2, 3, 4, 8]), st.data())
def test_window_divides_exactly(samples: int, size: int, steps: int, world: int, data: st.DataObject) -> None:
    order = epoch_order(samples, 0, 0)
    cursor = data.draw(st.integers(0, samples - 1))
    parts = [window(order, cursor, size, steps, rank, world) for rank in range(world)]
    following = min(samples, cursor + size * steps * world)
    assert {after for _, after in parts} == {following}
    assert len({len(batches) for batches, _ in parts}) == 1  # ranks take part in the same collectives
    for micro_step in zip(*(batches for batches, _ in parts), strict=True):
        lengths = [len(batch) for batch in micro_step]
        assert max(lengths) <= size and max(lengths) - min(lengths) <= 1
    together = torch.cat([torch.cat(micro_step) for micro_step in zip(*(b for b, _ in parts), strict=True)])
    assert torch.equal(together, order[cursor:following])  # nothing dropped, nothing twice, in order


@pytest.mark.parametrize("samples", [64, 61, 33, 5, 1])
def test_an_epoch_is_the_same_for_every_world(samples: int) -> None:
    order = epoch_order(samples, 3, 1)
    histories = []
    for world in (1, 2, 4, 8):
        cursor, history = 0, []
        while cursor < samples:
            ranks = [window(order, cursor, 8 // world, 2, rank, world) for rank in range(world)]
            history.append([torch.cat(micro_step).tolist() for micro_step in zip(*(b for b, _ in ranks), strict=True)])
            cursor = ranks[0][1]
        histories.append(history)
    assert all(history == histories[0] for history in histories)
    assert sorted(i for w in histories[0] for micro_step in w for i in micro_step) == list(range(samples))


def test_a_rank_may_be_empty_in_a_remainder() -> None:
    order = torch.arange(9)
    assert [b.tolist() for b in window(order, 0, 2, 3, 0, 4)[0]] == [[0, 1], [8]]
    assert [b.tolist() for b in window(order, 0, 2, 3, 3, 4)[0]] == [[6, 7], []]
    assert window(order, 9, 2, 3, 0, 4) == ([], 9)


# Text


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Bytes that encode their position: position mod 251, which no stride here divides."""
    file = tmp_path / "corpus"
    file.write_bytes(bytes(i % 251 for i in range(5000)))
    return file


@pytest.mark.parametrize("stride", [None, 1, 7, 100])
def test_the_target_is_the_next_byte(corpus: Path, stride: int | None) -> None:
    splits = TextData(path=str(corpus), length=16, stride=stride, test_samples=None).load(CPU)
    assert splits.spec == Spec("tokens", (16,), "tokens", 256, 256)
    for split in (splits.train, splits.test):
        inputs, targets = whole(split)
        assert inputs.shape == targets.shape == (len(inputs), 16) and inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(targets, (inputs + 1) % 251)
        assert torch.equal(inputs[1:, 0], (inputs[:-1, 0] + (stride or 16)) % 251)


def test_training_and_test_bytes_do_not_overlap(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"a" * 900 + b"b" * 100)
    splits = TextData(path=str(tmp_path), length=10, stride=1).load(CPU)
    assert {ord("a")} == {int(v) for t in whole(splits.train) for v in t.unique()}
    assert {ord("b")} == {int(v) for t in whole(splits.test) for v in t.unique()}


def test_variable_length_pads_and_counts(corpus: Path) -> None:
    options = TextData(path=str(corpus), length=16, variable_length=True, min_length=3)
    splits = options.load(CPU)
    assert isinstance(splits.train, TokenSplit) and splits.train.lengths is not None
    inputs, targets = whole(splits.train)
    counts = (targets != IGNORE).sum(1)
    assert torch.equal(counts, splits.train.lengths)
    assert counts.min() == 3 and counts.max() == 16
    padding = torch.arange(16) >= counts[:, None]
    assert (inputs[padding] == 0).all() and (targets[padding] == IGNORE).all()
    assert torch.equal(targets[~padding], (inputs[~padding] + 1) % 251)
    again = whole(options.load(CPU).train)
    assert torch.equal(again[1], targets)
    options.seed = 1
    assert not torch.equal(whole(options.load(CPU).train)[1], targets)
    check(splits, 32)


def test_samples_draws_windows_and_offset_moves_on(corpus: Path) -> None:
    all_of = whole(TextData(path=str(corpus), length=16).load(CPU).train)[0]
    some = TextData(path=str(corpus), length=16, samples=50, test_samples=3).load(CPU)
    assert len(some.train) == 50 and some.test is not None and len(some.test) == 3
    assert isinstance(some.train, TokenSplit)
    starts = some.train.starts.tolist()
    assert len(set(starts)) == 50 and set(starts) < set(range(0, 16 * len(all_of), 16))
    moved = whole(TextData(path=str(corpus), length=16, offset=0.5).load(CPU).train)[0]
    assert moved[0, 0] == 2500 % 251
    assert len(moved) < len(all_of)


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    for name, text in {
        "b.txt": b"BBBB",
        "a/z.md": b"AAAA",
        "c.py": b"C\xff\xfeC",
        "d.bin": b"\0\1",
        ".e": b"E",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text)

    def text_of(**options: object) -> bytes:
        train = TextData(path=str(tmp_path), length=1, **options).load(CPU).train  # type: ignore[arg-type]
        assert isinstance(train, TokenSplit)
        return bytes(train.tokens.tolist())

    assert text_of() == b"AAAABBBBC\xff\xfe"  # the last tenth is the test set
    assert text_of(suffixes=[".md", ".txt"]) == b"AAAABBBB"
    assert text_of(max_bytes=6) == b"AAAABB"
    assert text_of(max_bytes=6, offset=0.25) == b"ABBBBC"


def test_the_standard_library_is_a_corpus() -> None:
    splits = TextData(max_bytes=100_000).load(CPU)
    assert len(splits.train) == (90_000 - 1) // 64
    assert splits.test is not None and 0 < len(splits.test) <= 512
    assert not any({"test", "site-packages", "__pycache__"} & set(file.parts[-3:-1]) for file in TextData().files())
    check(splits, 32)


def test_text_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"^path=nowhere: there is no such file or folder \(in "):
        TextData(path="nowhere").load(CPU)
    with pytest.raises(Invalid, match="has no text file"):
        TextData(path=str(tmp_path)).load(CPU)
    with pytest.raises(Invalid, match=r"ends in .rst or .md"):
        TextData(path=str(tmp_path), suffixes=[".rst", ".md"]).load(CPU)
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(Invalid, match=r"has 0 bytes of text to train on, but one window needs 65"):
        TextData(path=str(tmp_path / "empty")).load(CPU)


def test_a_file_that_cannot_be_read_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"x" * 200)
    (tmp_path / "b").write_bytes(b"y" * 200)
    opened = Path.open

    def refuse(self: Path, *args: object, **kwargs: object) -> object:
        if self.name == "a":
            raise PermissionError(13, "Permission denied")
        return opened(self, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.warns(UserWarning, match=r"1 of 2 files cannot be read, the first is .*a: Permission denied"):
        train = TextData(path=str(tmp_path), length=8).load(CPU).train
    assert (whole(train)[0] == ord("y")).all()


# Sets of tensors


def test_digits_are_normalised_images_divided_once() -> None:
    splits = DigitsData().load(CPU)
    (images, labels), (test_images, test_labels) = whole(splits.train), whole(splits.test)
    assert images.shape == (1437, 1, 8, 8) and test_images.shape == (360, 1, 8, 8)
    assert images.dtype == torch.float32 and labels.dtype == torch.int64
    assert abs(images.mean()) < 1e-5 and abs(images.std() - 1) < 1e-5
    assert labels.unique().tolist() == test_labels.unique().tolist() == list(range(10))
    scaled = torch.cat([images, test_images])
    levels = ((scaled - scaled.min()) / (scaled.max() - scaled.min()) * 16).round()
    from sklearn.datasets import load_digits

    assert sorted(levels.flatten(1).sum(1).tolist()) == sorted(load_digits().images.sum((1, 2)).tolist())
    assert len(DigitsData(samples=50).load(CPU).train) == 50
    assert not torch.equal(whole(DigitsData(seed=1).load(CPU).train)[1], labels)


def test_adding_sums_two_marked_numbers() -> None:
    splits = AddingData(length=11, samples=500, test_samples=20).load(CPU)
    inputs, targets = whole(splits.train)
    assert inputs.shape == (500, 11, 2) and targets.shape == (500, 1) and splits.spec.shape == (11, 2)
    marks = inputs[..., 1]
    assert torch.equal(marks[:, :5].sum(1), torch.ones(500)) and torch.equal(marks[:, 5:].sum(1), torch.ones(500))
    torch.testing.assert_close((inputs[..., 0] * marks).sum(1, keepdim=True), targets)
    assert abs((targets - 1).square().mean() - 1 / 6) < 0.03
    assert torch.equal(inputs, whole(AddingData(length=11, samples=500, test_samples=20).load(CPU).train)[0])
    assert AddingData(samples=40, test_samples=0).load(CPU).test is None


@pytest.mark.parametrize("hidden", [0, 64])
def test_synthetic_teachers(hidden: int) -> None:
    splits = SyntheticData(task="regression", outputs=3, hidden=hidden).load(CPU)
    assert splits.spec == Spec("vectors", (32,), "values", 3) and 0.5 < whole(splits.train)[1].std() < 1.6
    clean = SyntheticData(hidden=hidden).load(CPU)
    noisy = SyntheticData(hidden=hidden, noise=0.5).load(CPU)
    assert torch.equal(whole(clean.test)[1], whole(noisy.test)[1])
    changed = (whole(clean.train)[1] != whole(noisy.train)[1]).float().mean()
    assert 0.4 < changed < 0.5  # a random label is the right one in a tenth of the cases
    x, y = whole(SyntheticData(task="regression", outputs=2).load(CPU).train)
    torch.testing.assert_close(x @ torch.linalg.lstsq(x, y).solution, y, atol=1e-3, rtol=1e-3)  # linear, and noiseless


def test_synthetic_counts_are_poisson_draws_whose_log_rates_are_the_values_of_regression() -> None:
    shared = {"outputs": 2, "samples": 20000}
    x, counts = whole(SyntheticData(task="counts", **shared).load(CPU).train)
    same, log_rate = whole(SyntheticData(task="regression", **shared).load(CPU).train)
    assert torch.equal(x, same) and (counts == counts.round()).all() and counts.min() == 0
    rate = log_rate.exp()
    assert abs(((counts - rate) / rate.sqrt()).mean()) < 0.02
    assert abs(((counts - rate) ** 2 / rate).mean() - 1) < 0.1  # the variance of a Poisson number is its rate


def test_the_global_generator_neither_matters_nor_moves(corpus: Path) -> None:
    text = TextData(path=str(corpus), samples=20, variable_length=True)
    for data in (DigitsData(), AddingData(), SyntheticData(), SyntheticData(task="counts"), text):
        before = torch.random.get_rng_state()
        first = whole(data.load(CPU).train)
        assert torch.equal(before, torch.random.get_rng_state())
        torch.rand(1)
        for a, b in zip(first, whole(data.load(CPU).train), strict=True):
            assert torch.equal(a, b)


# torchvision's formats


def write_cifar10(root: Path, monkeypatch: pytest.MonkeyPatch, each: int = 4) -> np.ndarray:
    from torchvision.datasets import CIFAR10

    folder = root / CIFAR10.base_folder
    folder.mkdir()
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6 * each, 3072), dtype=np.uint8)

    def write(name: str, content: object) -> str:
        (folder / name).write_bytes(pickle.dumps(content))
        return hashlib.md5((folder / name).read_bytes()).hexdigest()

    sums = []
    for i, (name, _) in enumerate([*CIFAR10.train_list, *CIFAR10.test_list]):
        rows = pixels[i * each : (i + 1) * each]
        sums.append([name, write(name, {"data": rows, "labels": [(i + j) % 10 for j in range(each)]})])
    # The files' own checksums take the place of the published ones; everything else is torchvision's reader.
    monkeypatch.setattr(CIFAR10, "train_list", sums[:5])
    monkeypatch.setattr(CIFAR10, "test_list", sums[5:])
    meta = {**CIFAR10.meta, "md5": write("batches.meta", {"label_names": [str(i) for i in range(10)]})}
    monkeypatch.setattr(CIFAR10, "meta", meta)
    return pixels


def test_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchvision")
    pixels = write_cifar10(tmp_path, monkeypatch)
    splits = CIFAR10Data(batch_size=4, root=str(tmp_path)).load(CPU)
    images, labels = whole(splits.train)
    assert images.shape == (20, 3, 32, 32) and images.dtype == torch.float32 and len(whole(splits.test)[0]) == 4
    assert labels.tolist() == [(i + j) % 10 for i in range(5) for j in range(4)]
    wanted = (pixels[0].reshape(3, 32, 32)[2, 5, 7] / 255 - 0.4465) / 0.2616
    assert images[0, 2, 5, 7].item() == pytest.approx(wanted, abs=1e-5)
    check(splits, 4)
    assert len(CIFAR10Data(root=str(tmp_path), samples=7).load(CPU).train) == 7
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(b"damaged")
    with pytest.raises(Invalid, match=r"no CIFAR-10 there; data.download=true fetches it"):
        CIFAR10Data(root=str(tmp_path)).load(CPU)


def test_mnist(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    for name, n in (("train", 6), ("t10k", 2)):
        head = struct.pack(">iiii", 0x803, n, 28, 28)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(head + pixels[:n].tobytes())
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">ii", 0x801, n) + bytes(range(n)))
    splits = MNISTData(batch_size=2, root=str(tmp_path)).load(CPU)
    images, labels = whole(splits.train)
    assert images.shape == (6, 1, 28, 28) and labels.tolist() == list(range(6)) and labels.dtype == torch.int64
    assert images[3, 0, 9, 4].item() == pytest.approx((pixels[3, 9, 4] / 255 - 0.1307) / 0.3081, abs=1e-5)
    check(splits, 2)
    (folder / "t10k-images-idx3-ubyte").write_bytes(struct.pack(">iiii", 0x803, 2, 28, 28) + b"short")
    with pytest.raises(Invalid, match=r"^root=.*: MNIST there cannot be read: "):
        MNISTData(root=str(tmp_path)).load(CPU)


@pytest.mark.parametrize(("data", "name"), [(CIFAR10Data, "CIFAR-10"), (MNISTData, "MNIST")])
def test_missing_torchvision_files(data: type[CIFAR10Data], name: str, tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    with pytest.raises(Invalid, match=f"^root={tmp_path}: no {name} there; data.download=true fetches it$"):
        data(root=str(tmp_path)).load(CPU)


# The user's own


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"module_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        textwrap.dedent("""
            import numpy, torch
            from torch.utils.data import TensorDataset

            class Pairs(torch.utils.data.Dataset):
                def __init__(self, pairs): self.pairs = pairs
                def __len__(self): return len(self.pairs)
                def __getitem__(self, i): return self.pairs[i]

            number = 3
            def vectors(n=6): return Pairs([(torch.randn(5), i % 3) for i in range(n)])
            def image(): return torch.rand(3, 4, 4), torch.rand(2)
            def images(): return [image() for _ in range(6)], [image()]
            def pictures(): return torch.rand(6, 3, 4, 4), torch.rand(6, 2, 4, 4)
            def arrays(): return numpy.ones((6, 7, 2)), numpy.arange(6.0)
            def tensor_dataset():
                tokens = torch.arange(24).view(6, 4)
                return TensorDataset(tokens, tokens + 1), None
            def tags(): return tokens_and(lambda t: t % 3)
            def hidden(): return tokens_and(lambda t: t.where(t % 3 == 0, -100))
            def tokens_and(targets):
                tokens = torch.arange(24).view(6, 4)
                return tokens, targets(tokens)
            def ragged(): return [(torch.zeros(3), 0), (torch.zeros(4), 0)]
            def strings(): return [("a", 0)]
            def stream(): return iter([])
            def empty(): return []
        """)
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("vectors", Spec("vectors", (5,), "classes", 3)),
        ("images", Spec("images", (3, 4, 4), "values", 2)),
        ("pictures", Spec("images", (3, 4, 4), "values", 32)),
        ("arrays", Spec("sequences", (7, 2), "values", 1, single=True)),
        ("tensor_dataset", Spec("tokens", (4,), "tokens", 25, 25)),
        ("hidden", Spec("tokens", (4,), "tokens", 24, 24)),
        ("tags", Spec("tokens", (4,), "tokens", 3, 24)),
    ],
)
def test_kinds_of_custom_data_are_inferred(module: str, name: str, spec: Spec) -> None:
    splits = CustomData(target=f"{module}:{name}").load(CPU)
    inputs, targets = whole(splits.train)
    assert splits.spec == spec and inputs.shape == (6, *spec.shape)
    assert (splits.test is not None) == (name == "images")
    assert inputs.dtype == (torch.int64 if spec.inputs == "tokens" else torch.float32)
    assert targets.dtype == (torch.float32 if spec.targets == "values" else torch.int64)
    values = (6, 2, 4, 4) if name == "pictures" else (6, spec.outputs)
    assert targets.shape == {"classes": (6,), "values": values, "tokens": (6, 4)}[spec.targets]
    check(splits, 1) if name != "arrays" else None


def test_kinds_of_custom_data_can_be_given(module: str) -> None:
    made = CustomData(target=f"{module}:vectors", kwargs={"n": 9}, outputs=10).load(CPU)
    assert len(made.train) == 9 and made.spec.outputs == 10
    tags = CustomData(target=f"{module}:tags", outputs=5).load(CPU)
    assert (tags.spec.outputs, tags.spec.vocabulary) == (5, 24)  # of a tagger neither is the other
    told = CustomData(target=f"{module}:tensor_dataset", inputs="vectors", targets="values").load(CPU)
    assert told.spec == Spec("vectors", (4,), "values", 4) and whole(told.train)[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "ragged"}, r"input 1 has shape \(4,\) but the first \(3,\): pad them"),
        ({"target": "strings"}, "sample 0 does not turn into tensors"),
        ({"target": "stream"}, "a set must have a length and items"),
        ({"target": "empty"}, "returns an empty set"),
        ({"target": "number"}, "must name a class or a function, but is int"),
        ({"target": "nothing"}, "has no nothing"),
        ({"target": "vectors", "kwargs": {"m": 1}}, "refuses: .*unexpected keyword argument 'm'"),
        ({"target": "vectors", "inputs": "images"}, r"^inputs=images: must have 3 dimensions, but .* shape \(5,\)"),
        ({"target": "vectors", "inputs": "tokens"}, "^inputs=tokens: must be integers, but are float32"),
        ({"target": "vectors", "targets": "tokens"}, "^targets=tokens: cannot have the shape"),
        ({"target": "arrays", "outputs": 4}, "^outputs=4: must be 1, the size of a target"),
    ],
)
def test_custom_data_that_does_not_fit(module: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        CustomData(**{**options, "target": f"{module}:{options['target']}"}).load(CPU)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_bad_targets_have_different_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"wants_{tmp_path.name.replace('-', '_')}"
    Path(f"{name}.py").write_text("import not_installed_anywhere\n")
    Path(f"{name}_broken.py").write_text("def f(:\n")
    with pytest.raises(Invalid, match=r"must be package.module:Name"):
        load_object("target", "json.loads")
    with pytest.raises(Invalid, match="must be of the form"):
        CustomData(target="json.loads")
    with pytest.raises(Invalid, match=r"^target=no_such.thing:f: there is no module no_such .*working directory"):
        load_object("target", "no_such.thing:f")
    with pytest.raises(Invalid, match=r"there is no module json.thing"):
        load_object("target", "json.thing:f")
    with pytest.raises(Invalid, match=f"{name} was found but itself imports not_installed_anywhere"):
        load_object("target", f"{name}:f")
    with pytest.raises(Invalid, match="fails to import: SyntaxError"):
        load_object("target", f"{name}_broken:f")
    with pytest.raises(Invalid, match=r"json has no JSONDecoder\.nothing"):
        load_object("target", "json:JSONDecoder.nothing")
    import json

    assert load_object("target", "json:JSONDecoder.decode") is json.JSONDecoder.decode


# Faults

VECTORS = Spec("vectors", (3,), "classes", 4)


def faulty(change: str) -> Splits:
    x, y = torch.randn(9000, 3), torch.arange(9000) % 4
    if change == "nan":
        x[4500, 1], x[8000, 0] = float("nan"), float("inf")
    if change == "label":
        y[8999], y[77] = 4, -1
    if change == "lengths":
        y = y[:-1]
    if change == "constant":
        x[:] = 2.5
    if change == "both":
        x[0], y[1], test = float("nan"), 4, torch.randn(5, 3)
        test[3] = float("inf")
        return Splits(TensorSplit(x, y), TensorSplit(test, y[:5].clamp(max=3)), VECTORS, "mine")
    if change == "test":
        return Splits(TensorSplit(x, y), TensorSplit(x[:5], y[:5] + 1), VECTORS, "mine")
    if change == "empty":
        x, y = x[:0], y[:0]
    return Splits(TensorSplit(x, y), None, VECTORS, "mine")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "nan",
            "=mine: 2 of 9000 training inputs hold NaN or Inf, the first at index 4500; "
            "data.without=[4500,8000] leaves them out",
        ),
        (
            "label",
            "=mine: 2 of 9000 training targets are out of [0, 4), the first at index 77; "
            "data.without=[77,8999] leaves them out",
        ),
        ("test", "=mine: 1 of 5 test targets are out of [0, 4), the first at index 3"),
        (
            "both",
            "=mine: 1 of 9000 training inputs hold NaN or Inf, the first at index 0; "
            "1 of 9000 training targets are out of [0, 4), the first at index 1; "
            "1 of 5 test inputs hold NaN or Inf, the first at index 3",
        ),
        ("lengths", "=mine: has 9000 training inputs but 8999 targets"),
        ("empty", "=mine: the training set is empty"),
    ],
)
def test_faults_are_reported_with_their_index(change: str, message: str) -> None:
    with pytest.raises(Invalid, match=f"^{re.escape(message)}$") as caught:
        check(faulty(change), 32)
    assert caught.value.field == ""


def test_places_of_faults_are_those_of_the_whole_set() -> None:
    """Where samples were left out already; and where many are faulty, leaving these out is no answer."""
    splits = faulty("nan")
    splits.train = SyntheticData(without=[8999, 3]).without_excluded(splits.train)
    with pytest.raises(Invalid, match=r"first at index 4500; data.without=\[3,4500,8000,8999\] leaves them out$"):
        check(splits, 32)
    many = torch.full((8, 3), float("nan"))
    with pytest.raises(Invalid, match=r"the first at index 0$"):
        check(Splits(TensorSplit(many, torch.zeros(8).long()), None, VECTORS, "mine"), 8)


def test_faults_of_values_and_tokens() -> None:
    values = torch.ones(8, 2)
    values[5, 1] = float("-inf")
    splits = Splits(TensorSplit(torch.randn(8, 3), values), None, Spec("vectors", (3,), "values", 2), "mine")
    with pytest.raises(Invalid, match="1 of 8 training targets hold NaN or Inf, the first at index 5"):
        check(splits, 8)
    tokens = torch.arange(100)
    text = TokenSplit(tokens, torch.arange(0, 90, 5), 5)
    check(Splits(text, text, Spec("tokens", (5,), "tokens", 100, 100)), 8)
    with pytest.raises(Invalid, match=r"1 of 100 training inputs hold tokens out of \[0, 99\), the first at index 99"):
        check(Splits(text, None, Spec("tokens", (5,), "tokens", 99, 99)), 8)
    padded = torch.tensor([[1, 2, IGNORE], [3, IGNORE, IGNORE]])
    check(Splits(TensorSplit(padded.clamp(min=0), padded), None, Spec("tokens", (3,), "tokens", 4, 4)), 2)
    with pytest.raises(Invalid, match="inputs hold tokens out of"):
        check(Splits(TensorSplit(padded, padded), None, Spec("tokens", (3,), "tokens", 4, 4)), 2)


@pytest.mark.parametrize(("stride", "lengths"), [(40, None), (40, torch.tensor([3, 5, 1])), (2, None)])
def test_targets_are_those_that_a_loss_is_given(stride: int, lengths: torch.Tensor | None) -> None:
    """Not the tokens between windows, nor padding; of windows that overlap each token once."""
    tokens, starts = torch.arange(100), torch.arange(0, 90, stride)
    split = TokenSplit(tokens, starts, 5, lengths)
    targets = torch.cat([t.flatten() for t in targets_of(split)])
    given = split.batch(torch.arange(len(starts)))[1].flatten() if stride > 5 else tokens
    assert torch.equal(targets, given)


def test_a_split_of_another_kind_is_checked_by_its_batches() -> None:
    class Squares:
        device = CPU

        def __len__(self) -> int:
            return 5000

        def batch(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return index[:, None].float().expand(-1, 3), torch.where(index == 4999, 9, index % 4)

    with pytest.raises(Invalid, match=r"1 of 5000 training targets .* the first at index 4999"):
        check(Splits(Squares(), None, VECTORS), 1)


def test_more_in_a_batch_than_in_the_set() -> None:
    with pytest.raises(Invalid, match=r"^batch_size=9001: must be at most 9000, the number of training samples$"):
        check(faulty(""), 9001)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(faulty(""), 9000)


def test_constant_inputs_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="data=mine: all training inputs are the same number"):
        check(faulty("constant"), 32)


@pytest.mark.parametrize(
    ("option", "bad"),
    [
        (TextData, {"length": 0}),
        (TextData, {"min_length": 65}),
        (TextData, {"offset": 1.0}),
        (TextData, {"offset": float("nan")}),
        (TextData, {"stride": 0}),
        (DigitsData, {"batch_size": 0}),
        (DigitsData, {"seed": -1}),
        (AddingData, {"length": 1}),
        (SyntheticData, {"task": "ranking"}),
        (SyntheticData, {"noise": 1.5}),
        (SyntheticData, {"outputs": 1}),
        (MNISTData, {"samples": 0}),
        (CustomData, {"target": "a:b", "inputs": "pictures"}),
    ],
)
def test_bad_options_are_refused_by_name(option: type, bad: dict[str, object]) -> None:
    with pytest.raises(Invalid) as caught:
        option(**bad)
    assert caught.value.field in bad


def test_importing_imports_no_pytorch() -> None:
    code = """
        from gradlab.base.lazy import lazy_import
        lazy_import("torch")
        import sys, gradlab.data.digits, gradlab.data.text, gradlab.update.loss
        gradlab.data.text.TextData(), gradlab.data.digits.DigitsData(), gradlab.update.loss.CrossEntropy()
        loaded = {"torch.nn", "torch._C", "sklearn", "torchvision", "numpy"} & set(sys.modules)
        assert not loaded, loaded
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=ROOT)


def test_samples_that_are_left_out_are_never_seen_and_the_others_keep_their_order() -> None:
    data = SyntheticData(samples=20, test_samples=4, without=[3, 19])
    whole = SyntheticData(samples=20, test_samples=4).load(CPU).train
    left = data.without_excluded(data.load(CPU).train)
    kept = [i for i in range(20) if i not in (3, 19)]
    assert len(left) == 18
    for seen, there in zip(left.batch(torch.arange(18)), whole.batch(torch.tensor(kept)), strict=True):
        assert torch.equal(seen, there)
    assert data.without_excluded(whole) is not whole and SyntheticData().without_excluded(whole) is whole
    for wrong in ([20], [-1], list(range(20))):
        with pytest.raises(Invalid, match="without"):
            SyntheticData(without=wrong).without_excluded(whole)
