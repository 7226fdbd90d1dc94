"""Models: they fit the data they say they fit, refuse the rest in a sentence, and their options do what they say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gradlab.base.option import Invalid
from gradlab.data.spec import Spec
from gradlab.models.base import ModelOption
from gradlab.models.custom import CustomOption
from gradlab.models.lstm import LSTMOption
from gradlab.models.resnet import ResNetOption
from gradlab.models.sigmoid_mlp import SigmoidMLPOption
from gradlab.models.transformer import TransformerOption

BATCH, STEPS, VOCABULARY, CLASSES, VALUES = 4, 6, 11, 3, 2
SHAPES = {"tokens": (STEPS,), "sequences": (STEPS, 5), "images": (2, 8, 7), "vectors": (9,)}
SIZES = {"tokens": VOCABULARY, "classes": CLASSES, "values": VALUES}
FITS = {
    "transformer": (("tokens", "sequences", "images"), ("tokens", "classes", "values")),
    "lstm": (("tokens", "sequences", "images"), ("tokens", "classes", "values")),
    "resnet": (("images",), ("classes", "values")),
    "sigmoid_mlp": (("vectors", "images", "sequences"), ("classes", "values")),
}
MODELS: dict[str, list[ModelOption]] = {
    "transformer": [
        TransformerOption(layers=2, width=16, heads=2, dropout=0.1),
        TransformerOption(layers=2, width=16, heads=2, norm="post", activation="relu", init="gpt2"),
        TransformerOption(layers=2, width=16, heads=2, norm="none"),
    ],
    "lstm": [
        LSTMOption(width=8, layers=2, dropout=0.1),
        LSTMOption(width=8, cell="gru", init="orthogonal"),
        LSTMOption(width=8, cell="rnn", nonlinearity="relu", gain=0.9),
    ],
    "resnet": [ResNetOption(), ResNetOption(norm="group")],
    "sigmoid_mlp": [
        SigmoidMLPOption(layers=4, width=16),
        SigmoidMLPOption(layers=4, width=16, activation="tanh", norm="batch", residual=True),
        SigmoidMLPOption(layers=4, width=16, activation="gelu", norm="layer", init="he"),
    ],
}
ALL_SPECS = [
    Spec(inputs, SHAPES[inputs], targets, SIZES[targets], VOCABULARY if inputs == "tokens" else 0)
    for inputs in SHAPES
    for targets in SIZES
]
TOKENS = Spec("tokens", (STEPS,), "tokens", VOCABULARY, VOCABULARY)
VECTORS = Spec("vectors", (9,), "classes", CLASSES)
IMAGES = Spec("images", (3, 32, 32), "classes", 10)


def batch(spec: Spec, size: int = BATCH) -> Tensor:
    if spec.inputs == "tokens":
        return torch.randint(spec.vocabulary, (size, *spec.shape))
    return torch.randn(size, *spec.shape)


def build(model: ModelOption, spec: Spec, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return model.build(spec)


def one_line(error: pytest.ExceptionInfo[Invalid], field: str) -> str:
    assert error.value.field == field
    text = str(error.value)
    assert "\n" not in text and len(text) < 250
    return text


# Every model, every kind of data


@pytest.mark.parametrize("spec", ALL_SPECS, ids=lambda spec: f"{spec.inputs}-{spec.targets}")
@pytest.mark.parametrize("name", FITS)
def test_fits_the_data_or_is_refused_with_the_reason(name: str, spec: Spec) -> None:
    inputs, targets = FITS[name]
    if spec.inputs not in inputs or spec.targets not in targets:
        with pytest.raises(Invalid) as error:
            MODELS[name][0].build(spec)
        assert name in one_line(error, "")
        return
    for options in MODELS[name]:
        model, x = build(options, spec), batch(spec)
        y = model(x)
        steps = (8 if spec.inputs == "images" else STEPS,) if spec.targets == "tokens" else ()
        assert y.shape == (BATCH, *steps, spec.outputs)
        y.square().sum().backward()
        for parameter_name, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.isfinite().all(), parameter_name
            assert parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize("name", [name for name in MODELS if name != "resnet"])
def test_the_seed_decides_the_weights(name: str) -> None:
    spec = VECTORS if name == "sigmoid_mlp" else TOKENS
    a, same, other = (build(MODELS[name][0], spec, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(a[key], same[key]) for key in a)
    assert not all(torch.equal(a[key], other[key]) for key in a)


def test_registering_the_options_does_not_load_torch() -> None:
    code = """if True:
        import sys
        from gradlab.base import components, lazy
        lazy.lazy_import("torch")
        components.load()
        assert type(sys.modules["torch"]) is lazy._Lazy and not {"torch.nn", "torchvision"} & set(sys.modules)"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("options", "values", "field"),
    [
        (TransformerOption, {"width": 30}, "width"),
        (TransformerOption, {"heads": 0}, "heads"),
        (TransformerOption, {"norm": "batch"}, "norm"),
        (TransformerOption, {"dropout": 1.0}, "dropout"),
        (LSTMOption, {"cell": "qrnn"}, "cell"),
        (LSTMOption, {"nonlinearity": "relu"}, "nonlinearity"),
        (LSTMOption, {"cell": "gru", "forget_bias": 1.0}, "forget_bias"),
        (LSTMOption, {"forget_bias": float("nan")}, "forget_bias"),
        (LSTMOption, {"gain": float("nan")}, "gain"),
        (ResNetOption, {"depth": 20}, "depth"),
        (ResNetOption, {"groups": 24}, "groups"),
        (SigmoidMLPOption, {"init": "lecun"}, "init"),
        (SigmoidMLPOption, {"norm": "batch", "activation_checkpointing": True}, "activation_checkpointing"),
    ],
)
def test_bad_values_are_refused(options: type[ModelOption], values: dict, field: str) -> None:
    with pytest.raises(Invalid) as error:
        options(**values)
    assert "must be" in one_line(error, field)


# Shared properties


@pytest.mark.parametrize("options", [*MODELS["transformer"], *MODELS["lstm"]])
@pytest.mark.parametrize("changed", [1, STEPS - 1])
def test_a_later_token_does_not_change_earlier_logits(options: ModelOption, changed: int) -> None:
    model, x = build(options, TOKENS).eval(), batch(TOKENS)
    later = x.clone()
    later[:, changed:] = (later[:, changed:] + 1) % VOCABULARY
    before, after = model(x), model(later)
    torch.testing.assert_close(before[:, :changed], after[:, :changed], rtol=0, atol=1e-6)
    assert not torch.allclose(before[:, changed], after[:, changed])
    assert not torch.allclose(before[:, -1], after[:, -1])  # and the last step does see them


@pytest.mark.parametrize(
    ("options", "spec"),
    [(TransformerOption(layers=2, dropout=0.2), TOKENS), (SigmoidMLPOption(layers=4, norm="layer"), VECTORS)],
)
def test_checkpointing_changes_memory_and_nothing_else(options: ModelOption, spec: Spec) -> None:
    torch.manual_seed(1)
    x = batch(spec)
    kept, results = [], []
    for recompute in (False, True):
        model = build(type(options)(**{**asdict(options), "activation_checkpointing": recompute}), spec)
        count = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal count
            count += 1
            return tensor

        torch.manual_seed(2)  # of the dropout
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = model(x)
        kept.append(count)
        y.square().sum().backward()
        results.append([y, *(parameter.grad for parameter in model.parameters())])
    assert kept[1] < kept[0] / 2
    for without, recomputed in zip(*results, strict=True):
        assert torch.equal(without, recomputed)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    ("options", "spec"),
    [
        *[(options, TOKENS) for options in MODELS["transformer"][1:] + MODELS["lstm"][1:]],
        *[(options, VECTORS) for options in MODELS["sigmoid_mlp"]],
        (ResNetOption(norm="group"), Spec("images", (1, 8, 8), "classes", 10)),
    ],
)
def test_stacked_lanes_have_the_gradients_of_lone_runs(options: ModelOption, spec: Spec) -> None:
    lanes, x = [build(options, spec, seed) for seed in (1, 2)], batch(spec)
    parameters, buffers = torch.func.stack_module_state(lanes)

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(lanes[0], (parameters, buffers), (x,)).square().mean()

    gradients = torch.func.vmap(torch.func.grad(loss))(parameters, buffers)
    for i, lane in enumerate(lanes):
        lane(x).square().mean().backward()
        for name, parameter in lane.named_parameters():
            torch.testing.assert_close(gradients[name][i], parameter.grad, rtol=1e-3, atol=1e-5)


# transformer


def test_norm_decides_where_layer_norms_are() -> None:
    def norms(norm: str) -> int:
        model = build(TransformerOption(layers=3, norm=norm), TOKENS)
        return sum("Norm" in type(module).__name__ for module in model.modules())

    assert (norms("pre"), norms("post"), norms("none")) == (7, 6, 0)


def test_post_norm_normalises_the_stream() -> None:
    model = build(TransformerOption(layers=1, norm="post"), TOKENS)
    x = model.blocks[0](torch.randn(2, STEPS, 64) * 50)
    torch.testing.assert_close(x.std(-1, correction=0), torch.ones(2, STEPS), rtol=1e-3, atol=1e-3)


def test_gpt2_init() -> None:
    model = build(TransformerOption(layers=8, width=128, init="gpt2"), TOKENS)
    assert model.blocks[0].expand.weight.std().item() == pytest.approx(0.02, rel=0.05)
    for weight in (model.blocks[3].project.weight, model.blocks[3].attention.project.weight):
        assert weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert not model.head.bias.any()


def test_tied_embeddings_are_one_parameter() -> None:
    model = build(TransformerOption(tie_embeddings=True), TOKENS)
    assert model.head.weight is model.embedding.weight
    with pytest.raises(Invalid) as error:
        TransformerOption(tie_embeddings=True).build(Spec("sequences", (6, 5), "classes", 3))
    one_line(error, "tie_embeddings")


def test_attention_is_the_textbook_formula() -> None:
    attention = build(TransformerOption(layers=1, width=16, heads=4), TOKENS).blocks[0].attention
    x = torch.randn(2, STEPS, 16)
    q, k, v = (part.view(2, STEPS, 4, 4).transpose(1, 2) for part in attention.qkv(x).split(16, dim=-1))
    scores = (q @ k.transpose(-1, -2) / 2).masked_fill(~torch.ones(STEPS, STEPS).tril().bool(), -torch.inf)
    expected = attention.project((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, STEPS, 16))
    torch.testing.assert_close(attention(x), expected)


# lstm


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("gain", [1.0, 0.5, 3.0])
def test_orthogonal_recurrent_weights(cell: str, gain: float) -> None:
    rnn = build(LSTMOption(cell=cell, width=16, init="orthogonal", gain=gain, layers=2), TOKENS).rnn
    for weight in (rnn.weight_hh_l0, rnn.weight_hh_l1):
        for gate in weight.split(16):
            torch.testing.assert_close(gate @ gate.T, gain**2 * torch.eye(16), rtol=0, atol=1e-4)
    assert not rnn.bias_ih_l0.any() and not rnn.bias_hh_l1.any()


def test_default_init_is_pytorchs_and_gain_scales_its_recurrent_weights() -> None:
    plain, scaled = (build(LSTMOption(width=16, gain=gain), TOKENS).rnn for gain in (1.0, 2.0))
    torch.manual_seed(0)
    nn.Embedding(VOCABULARY, 16)
    reference = nn.LSTM(16, 16)
    assert torch.equal(plain.weight_hh_l0, reference.weight_hh_l0)
    assert torch.equal(scaled.weight_hh_l0, 2 * reference.weight_hh_l0)
    assert torch.equal(scaled.weight_ih_l0, reference.weight_ih_l0)


@pytest.mark.parametrize("init", ["default", "orthogonal"])
def test_forget_bias_is_the_sum_of_both_biases_of_the_forget_gate_only(init: str) -> None:
    rnn, plain = (build(LSTMOption(width=8, layers=2, init=init, forget_bias=bias), TOKENS).rnn for bias in (1.5, None))
    for layer in (0, 1):
        total, before = (getattr(m, f"bias_ih_l{layer}") + getattr(m, f"bias_hh_l{layer}") for m in (rnn, plain))
        assert torch.equal(total[8:16], torch.full((8,), 1.5))
        assert torch.equal(total[:8], before[:8]) and torch.equal(total[16:], before[16:])


def test_relu_rnn_passes_values_above_one() -> None:
    spec = Spec("sequences", (3, 1), "values", 1)
    rnn = build(LSTMOption(cell="rnn", nonlinearity="relu", width=32), spec).rnn
    assert rnn(torch.full((1, 3, 1), 100.0))[0].max() > 1


# resnet


@pytest.mark.parametrize("depth", [18, 34, 50])
def test_resnet_is_torchvisions_apart_from_the_stem(depth: int) -> None:
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    reference = getattr(models, f"resnet{depth}")(num_classes=10).state_dict()
    ours = build(ResNetOption(depth=depth), IMAGES).state_dict()
    assert list(ours) == list(reference)
    assert ours["conv1.weight"].shape == (64, 3, 3, 3)
    assert all(torch.equal(ours[key], reference[key]) for key in ours if key != "conv1.weight")


def test_stem_keeps_the_resolution() -> None:
    network = build(ResNetOption(), Spec("images", (1, 8, 8), "classes", 10))
    assert network.maxpool(network.conv1(torch.randn(2, 1, 8, 8))).shape == (2, 64, 8, 8)


@pytest.mark.parametrize("norm", ["group", "none"])
def test_no_statistics_over_the_batch(norm: str) -> None:
    network = build(ResNetOption(norm=norm, groups=16), IMAGES)
    assert not list(network.buffers())
    norms = [module for module in network.modules() if isinstance(module, nn.GroupNorm)]
    assert all(module.num_groups == 16 for module in norms) and bool(norms) == (norm == "group")
    x = torch.randn(3, 3, 8, 8)
    torch.testing.assert_close(network(x)[:1], network(x[:1]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("depth", [18, 34, 50])
def test_without_residual_a_block_is_its_convolutions_one_after_the_other(depth: int) -> None:
    plain, residual = (build(ResNetOption(depth=depth, residual=r), IMAGES).eval() for r in (False, True))
    convolutions = [m for m in plain.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) + 1 == depth and not any("downsample" in n for n, _ in plain.named_parameters())
    residual.load_state_dict(plain.state_dict(), strict=False)
    block, same = plain.layer2[1], residual.layer2[1]  # of one width, so that nothing is on the path but the input
    x = torch.randn(2, block.conv1.in_channels, 4, 4)
    y = x
    for i in range(1, 4 if depth == 50 else 3):
        before = getattr(block, f"bn{i}")(getattr(block, f"conv{i}")(y))
        y = before.relu()
    torch.testing.assert_close(block(x), y)
    torch.testing.assert_close(same(x), (before + x).relu())
    plain(torch.randn(2, *IMAGES.shape)).sum().backward()
    assert all(p.grad is not None for p in plain.parameters())


# sigmoid_mlp


@pytest.mark.parametrize("gain", [1.0, 0.5])
@pytest.mark.parametrize(
    ("init", "variance"),
    [("xavier", 2 / 768), ("he", 2 / 512), ("too_small", 0.01 / 512), ("too_large", 9 / 512)],
)
def test_variance_of_initial_weights(init: str, variance: float, gain: float) -> None:
    options = SigmoidMLPOption(layers=2, width=256, init=init, gain=gain)
    model = build(options, Spec("vectors", (512,), "classes", 3))
    layer = model.layers[0].linear  # (256, 512): the two fans differ
    assert layer.weight.var().item() == pytest.approx(gain**2 * variance, rel=0.05)
    assert layer.weight.mean().abs() < 0.02 * variance**0.5
    assert not layer.bias.any() and not model.head.bias.any()


def test_orthogonal_mlp() -> None:
    model = build(SigmoidMLPOption(width=32, init="orthogonal", gain=1.5), VECTORS)
    weight = model.layers[1].linear.weight
    torch.testing.assert_close(weight @ weight.T, 2.25 * torch.eye(32), rtol=0, atol=1e-4)


def test_default_init_is_pytorchs() -> None:
    model = build(SigmoidMLPOption(layers=1), VECTORS)
    torch.manual_seed(0)
    reference = nn.Linear(9, 64)
    assert torch.equal(model.layers[0].linear.weight, reference.weight)
    assert torch.equal(model.layers[0].linear.bias, reference.bias)


def test_without_biases_a_relu_network_is_homogeneous() -> None:
    net = build(SigmoidMLPOption(activation="relu", init="he", layers=3, bias=False), VECTORS)
    x = torch.randn(5, 9)
    assert not any(name.endswith("bias") for name, _ in net.named_parameters())
    torch.testing.assert_close(net(3 * x), 3 * net(x))


def test_residual_adds_the_input_from_the_second_layer_on() -> None:
    plain, residual = (build(SigmoidMLPOption(layers=6, residual=residual), VECTORS) for residual in (False, True))
    x = torch.randn(2, 64)
    torch.testing.assert_close(residual.layers[5](x), x + plain.layers[5](x))
    assert torch.equal(residual.layers[0](x[:, :9]), plain.layers[0](x[:, :9]))


def test_gradients_vanish_towards_the_input_and_the_remedies_restore_them() -> None:
    def first_and_last(**values: object) -> tuple[float, float]:
        model = build(SigmoidMLPOption(layers=20, **values), VECTORS)
        torch.manual_seed(1)
        nn.functional.cross_entropy(model(batch(VECTORS, 32)), torch.randint(CLASSES, (32,))).backward()
        # The largest element: the fp32 norm of gradients below 1e-23 is zero.
        return tuple(model.layers[i].linear.weight.grad.abs().max().item() for i in (0, -1))

    def ratio(**values: object) -> float:
        first, last = first_and_last(**values)
        return first / last

    assert 0 < ratio() < 1e-8
    assert 0 < ratio(init="too_small") < 1e-20
    assert all(0 < gradient < 1e-15 for gradient in first_and_last(activation="relu", init="too_small"))
    assert all(gradient > 1e3 for gradient in first_and_last(activation="relu", init="too_large"))
    for remedy in (
        {"activation": "relu", "init": "he"},
        {"residual": True},
        {"activation": "tanh", "init": "orthogonal"},
    ):
        assert ratio(**remedy) > 1e-2, remedy


def test_with_batch_norm_there_is_no_bias() -> None:
    model = build(SigmoidMLPOption(norm="batch"), VECTORS)
    assert all(layer.linear.bias is None for layer in model.layers)
    assert all(layer.linear.bias is not None for layer in build(SigmoidMLPOption(norm="layer"), VECTORS).layers)


# custom

NETS = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width, body=None, depth=1):
        super().__init__()
        self.body, self.head = body, nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.body(x) if self.body else x)

    @classmethod
    def wide(cls):
        return cls(9)

class Answers(Net):
    def __init__(self, width, kind):
        super().__init__(width)
        self.kind = kind

    def forward(self, x):
        y = super().forward(x)
        return {"tuple": (y, None), "dict": {"loss": None, "logits": y}, "none": None}[self.kind]

def number():
    return 3

built = Net(9)
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "mynets.py").write_text(NETS)
    (tmp_path / "broken.py").write_text("import surely_not_installed\n")
    monkeypatch.chdir(tmp_path)  # found there without being on the path
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield "mynets"
    for name in ("mynets", "broken"):
        sys.modules.pop(name, None)


def test_custom_builds_what_is_named(nets: str) -> None:
    model = build(CustomOption("mynets:Net", [9]), VECTORS)
    assert type(model).__name__ == "Net" and list(model.state_dict()) == ["head.weight", "head.bias"]
    assert model(batch(VECTORS)).shape == (BATCH, CLASSES)
    assert build(CustomOption("mynets:Net.wide"), VECTORS).head.in_features == 9


def test_custom_builds_nested_targets_first(nets: str) -> None:
    linear = {"target": "torch.nn:Linear", "args": [9, 5], "kwargs": {"bias": False}}
    body = {"target": "torch.nn:Sequential", "args": [linear, {"target": "torch.nn:ReLU"}]}
    model = build(CustomOption("mynets:Net", kwargs={"width": 5, "body": body}), VECTORS)
    assert model(batch(VECTORS)).shape == (BATCH, CLASSES)
    assert list(model.state_dict()) == ["body.0.weight", "head.weight", "head.bias"]


def test_a_mapping_with_other_keys_is_data() -> None:
    options = CustomOption("torch.nn:ModuleDict", kwargs={"modules": {"a": {"target": "torch.nn:ReLU"}}})
    assert isinstance(build(options, VECTORS)["a"], nn.ReLU)
    from gradlab.models.custom import resolve

    assert resolve({"target": "classes", "weight": 1}, "kwargs.x") == {"target": "classes", "weight": 1}


@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_custom_returns_the_logits(nets: str, kind: str) -> None:
    model = build(CustomOption("mynets:Answers", [9, kind]), VECTORS)
    assert model(batch(VECTORS)).shape == (BATCH, CLASSES)


def test_custom_without_logits_is_refused(nets: str) -> None:
    model = build(CustomOption("mynets:Answers", [9, "none"]), VECTORS)
    with pytest.raises(Invalid) as error:
        model(batch(VECTORS))
    assert "NoneType" in one_line(error, "model.target")


@pytest.mark.parametrize(
    ("target", "kwargs", "field", "message"),
    [
        ("mynets:Nest", {}, "target", "mynets has no Nest"),
        ("mynets.deeper:Net", {}, "target", "no module mynets.deeper"),
        ("my_nets:Net", {}, "target", "working directory"),
        ("broken:Net", {}, "target", "imports surely_not_installed"),
        ("mynets:", {}, "target", "package.module:Name"),
        ("mynets:number", {}, "target", "returned int"),
        ("mynets:built", {}, "target", "must name a class"),
        ("mynets:Net", {"widht": 9}, "kwargs", "widht"),
        ("mynets:Net", {"width": 9, "body": {"target": "torch.nn:Linaer"}}, "kwargs.body.target", "no Linaer"),
        ("mynets:Net", {"width": 9, "body": {"target": "torch.nn:Linear"}}, "kwargs.body.kwargs", "in_features"),
    ],
)
def test_bad_targets_are_refused_in_a_line(nets: str, target: str, kwargs: dict, field: str, message: str) -> None:
    with pytest.raises(Invalid) as error:
        CustomOption(target, kwargs=kwargs).build(VECTORS)
    assert message in one_line(error, field)


@pytest.mark.parametrize("target", ["", "mynets.Net"])
def test_a_target_needs_a_colon(target: str) -> None:
    with pytest.raises(Invalid) as error:
        CustomOption(target)
    one_line(error, "target")


def test_hugging_face_causal_lm() -> None:
    pytest.importorskip("transformers")
    config = {
        "target": "transformers:GPT2Config",
        "kwargs": {"vocab_size": VOCABULARY, "n_positions": STEPS, "n_embd": 8, "n_layer": 1, "n_head": 2},
    }
    model = build(CustomOption("transformers:AutoModelForCausalLM.from_config", [config]), TOKENS)
    x = batch(TOKENS)
    logits = model(x)
    assert logits.shape == (BATCH, STEPS, VOCABULARY)
    assert torch.equal(model.eval()(x), model(input_ids=x))
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert "transformer.wte.weight" in model.state_dict()
