"""The one-shot checks find what plain loops over the parameters find, from 1e-42 to 1e30."""

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

import gradlab
from gradlab import check_gradients, diagnose_gradients
from gradlab.diagnosis import gradient_check


def looped(model: nn.Module, low: float = 1e-8, high: float = 100) -> dict[str, Any]:
    """One parameter at a time, in float64."""
    found: dict[str, Any] = {"param_norms": {}, "has_nan": False, "has_inf": False, "vanishing": [], "exploding": []}
    total = 0.0
    for name, p in model.named_parameters():
        if p.grad is None:
            continue
        grad = p.grad.double()
        found["has_nan"] |= bool(torch.isnan(grad).any())
        found["has_inf"] |= bool(torch.isinf(grad).any())
        norm = grad.norm(2).item()
        found["param_norms"][name] = norm
        total += norm**2
        found["vanishing"] += [name] if norm < low else []
        found["exploding"] += [name] if norm > high else []
    return found | {"total_norm": math.sqrt(total)}


def net(depth: int = 6, tied: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*[m for _ in range(depth) for m in (nn.Linear(8, 8), nn.Tanh())])
    if tied:
        model[2].weight = model[0].weight
    return model


def trained(factor: float = 1.0, **rest: Any) -> nn.Module:
    model = net(**rest)
    model(torch.randn(16, 8)).square().sum().backward()
    for p in model.parameters():
        p.grad.mul_(factor)
    return model


def check(model: nn.Module, **how: Any) -> dict[str, Any]:
    """Compare with the loop; returns what was found."""
    found, expected = diagnose_gradients(model, quiet=True, **how), looped(model)
    for name in ("has_nan", "has_inf"):
        assert found[name] is expected[name]
    assert found["param_norms"] == pytest.approx(expected["param_norms"], rel=1e-5, nan_ok=True)
    assert [name for name, _ in found["vanishing"]] == expected["vanishing"]
    assert [name for name, _ in found["exploding"]] == expected["exploding"]
    if not math.isnan(expected["total_norm"]):
        assert found["total_norm"] == pytest.approx(expected["total_norm"], rel=1e-5)
    assert check_gradients(model, quiet=True) == pytest.approx(found["total_norm"], rel=1e-12, nan_ok=True)
    return found


@pytest.mark.parametrize("factor", [1e-42, 1e-30, 1e-8, 1.0, 1e4, 1e30])
@pytest.mark.parametrize("tied", [False, True])
def test_norms_are_those_of_a_loop(factor: float, tied: bool) -> None:
    found = check(trained(factor, tied=tied))
    assert len(found["param_norms"]) == 12 - tied and found["no_gradient"] == [] and not found["has_inf"]
    assert found["total_norm"] > 0 and math.isfinite(found["total_norm"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_other_types_among_them(dtype: torch.dtype) -> None:
    """Norms of half precision beyond 65504 are no overflow."""
    model = trained()
    torch.manual_seed(1)
    model.extra = nn.Parameter(torch.zeros(300, dtype=dtype))
    model.extra.grad = torch.randn(300, dtype=dtype) * 1e4
    found = diagnose_gradients(model, quiet=True)
    expected = torch.linalg.vector_norm(model.extra.grad.to(torch.promote_types(dtype, torch.float64))).item()
    assert found["param_norms"]["extra"] == pytest.approx(expected, rel=1e-5) and not found["has_inf"]
    assert expected > 65504
    assert list(found["param_norms"]) == [n for n, _ in model.named_parameters()]


def test_float64_beyond_its_squares() -> None:
    model = nn.Linear(3, 2).double()
    model.weight.grad, model.bias.grad = torch.ones(2, 3).double() * 1e200, torch.ones(2).double() * 1e-200
    found = diagnose_gradients(model, quiet=True)
    assert found["param_norms"] == pytest.approx({"weight": 6**0.5 * 1e200, "bias": 2**0.5 * 1e-200}, rel=1e-12)
    assert found["total_norm"] == pytest.approx(6**0.5 * 1e200) and not found["has_inf"] and found["zero"] == []


def test_sparse_gradients_count_once() -> None:
    """Token 1 occurs twice: its rows add up before they are squared."""
    model = nn.Embedding(10, 4, sparse=True)
    model(torch.tensor([1, 1, 2])).sum().backward()
    assert check_gradients(model, quiet=True) == pytest.approx(math.sqrt(4 * 2**2 + 4))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_not_finite(bad: float) -> None:
    model = trained()
    model[4].weight.grad[0, 0] = bad
    found = check(model)
    assert found["nan" if math.isnan(bad) else "inf"] == ["4.weight"] and found["late_early_ratio"] is None
    model[4].weight.grad[0, 1] = math.nan
    found = check(model)
    assert found["has_nan"] and found["has_inf"] is not math.isnan(bad)
    assert math.isnan(found["total_norm"])


def test_what_the_loop_misses() -> None:
    model = trained()
    model.unused = nn.Linear(2, 2)
    model.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    model[6].weight.grad.zero_()
    found = check(model)
    assert found["no_gradient"] == ["unused.weight", "unused.bias"] and found["zero"] == ["6.weight"]
    model = net(20)
    for i, p in enumerate(model.parameters()):
        p.grad = torch.full_like(p, 10.0 ** (i // 2))
    ratio = diagnose_gradients(model, quiet=True)["late_early_ratio"]
    assert ratio == pytest.approx(1e18), "the last two layers over the first two"


def test_no_gradients_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_gradients(net()) == 0.0 and "no parameter has a gradient" in capsys.readouterr().out
    found = diagnose_gradients(net())
    assert found["total_norm"] == 0 and len(found["no_gradient"]) == 12 and found["late_early_ratio"] is None
    assert diagnose_gradients(nn.ReLU())["param_norms"] == {}
    empty = nn.Linear(0, 3)
    empty(torch.zeros(2, 0)).sum().backward()
    assert check_gradients(empty) == pytest.approx(12**0.5)


def test_scaled_gradients() -> None:
    expected, model = check_gradients(trained(), quiet=True), trained(2.0**16)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    assert check_gradients(model, scale=scaler, quiet=True) == pytest.approx(expected)
    scaler.scale(torch.ones(()))
    for scale in (scaler, 2.0**16, torch.tensor(2.0**16)):
        assert check_gradients(model, scale=scale, quiet=True) == pytest.approx(expected)


def test_nothing_is_fetched_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """For any number of parameters: one list of norms, and what costs nothing to read on a CPU."""
    counts = {"tolist": 0, "item": 0}
    for name in counts:
        real = getattr(torch.Tensor, name)

        def counting(self: torch.Tensor, name: str = name, real: Any = real) -> Any:
            counts[name] += 1
            return real(self)

        monkeypatch.setattr(torch.Tensor, name, counting)
    for depth in (2, 40):
        counts.update(tolist=0, item=0)
        model = net(depth)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        diagnose_gradients(model, quiet=True)
        assert counts == {"tolist": 1, "item": 2}, "smallest and largest, of which a CPU's kernel is doubted"


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    model = trained()
    model[0].weight.grad.fill_(1e3)
    model[2].weight.grad.fill_(float("nan"))
    check_gradients(model)
    output = capsys.readouterr().out.splitlines()
    assert output[0] == "gradient norm: nan, of 12 parameters" and output[2].split() == ["nan", "2.weight"]
    assert output[3].split() == ["8000", "0.weight"] and output.index("smallest:") == 7 and len(output) == 13
    diagnose_gradients(model)
    assert "NaN in 2.weight" in capsys.readouterr().out
    model[2].weight.grad.zero_()
    diagnose_gradients(model)
    output = capsys.readouterr().out
    assert "exploding? the norm is 8" in output and "all zeros: 2.weight" in output
    check_gradients(model, quiet=True)
    assert capsys.readouterr().out == ""


def test_importing_gradlab_imports_no_torch() -> None:
    code = "import sys, gradlab; assert 'torch' not in sys.modules; print('check_gradients' in dir(gradlab))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True\n"
    assert gradlab.check_gradients is gradient_check.check_gradients
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = gradlab.nothing
