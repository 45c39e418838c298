"""oneDNN's products of linear layers are those of PyTorch, with derivatives of every order, compiled and under vmap."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import SMALL, newest, train_in
from torch import Tensor, nn

from lab.training import onednn
from lab.training.onednn import Linear, over_rows, product, use_onednn

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this build of PyTorch is without oneDNN"
)
SHAPES = [((6, 5, 8), 12), ((6, 5, 12), 8), ((7, 8), 12)]
ROUNDING = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Any processor, any size; counts the products."""
    counted: list[int] = []

    def counting(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        counted.append(1)
        return product(x, weight, bias)

    monkeypatch.setattr(onednn, "quicker", lambda: True)
    monkeypatch.setattr(onednn, "_WORTHWHILE", 1)
    monkeypatch.setattr(onednn, "product", counting)
    return counted


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("shape", "wide"), SHAPES)
def test_values_and_derivatives_are_those_of_pytorch(shape: tuple[int, ...], wide: int, bias: bool) -> None:
    given = [torch.randn(shape), torch.randn(wide, shape[-1]), *([torch.randn(wide)] if bias else [])]
    given = [one.requires_grad_() for one in given]
    exact = [one.detach().double().requires_grad_() for one in given]
    found, expected = product(*given, *([] if bias else [None])), F.linear(*exact)
    torch.testing.assert_close(found.double(), expected, **ROUNDING)
    slope = torch.randn_like(found)
    first = torch.autograd.grad(found, given, slope, create_graph=True)
    first_exact = torch.autograd.grad(expected, exact, slope.double(), create_graph=True)
    for one, other in zip(first, first_exact, strict=True):
        torch.testing.assert_close(one.double(), other, **ROUNDING)
    second = torch.autograd.grad(first[0].sin().sum() + first[1].sin().sum(), given[:2])
    second_exact = torch.autograd.grad(first_exact[0].sin().sum() + first_exact[1].sin().sum(), exact[:2])
    for one, other in zip(second, second_exact, strict=True):
        torch.testing.assert_close(one.double(), other, **ROUNDING)


@pytest.mark.parametrize(("shape", "wide"), SHAPES)
def test_the_operator_keeps_what_it_promises_pytorch(shape: tuple[int, ...], wide: int) -> None:
    x, weight = torch.randn(shape, requires_grad=True), torch.randn(wide, shape[-1], requires_grad=True)
    torch.library.opcheck(product, (x, weight, torch.randn(wide, requires_grad=True)))
    torch.library.opcheck(product, (x, weight, None))
    rows = torch.randn(x.shape[:-1].numel(), wide, requires_grad=True)
    torch.library.opcheck(over_rows, (rows, x.detach().flatten(0, -2).requires_grad_()))


def test_samples_side_by_side() -> None:
    x, weights, bias = torch.randn(3, 4, 8), torch.randn(3, 5, 8), torch.randn(5)
    found = torch.vmap(product, (0, 0, None))(x, weights, bias)
    torch.testing.assert_close(found, torch.stack([F.linear(x[i], weights[i], bias) for i in range(3)]))
    torch.testing.assert_close(torch.vmap(over_rows, (0, 0))(found, x), found.transpose(1, 2) @ x)


def test_layers_are_taken_as_they_are(everywhere: list[int]) -> None:
    model = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 4, bias=False), nn.MultiheadAttention(4, 2))
    before, x = {name: one.clone() for name, one in model.state_dict().items()}, torch.randn(6, 8)
    expected = model[:3](x)
    use_onednn(model)
    assert [type(module) for module in model[:3]] == [Linear, nn.GELU, Linear]
    assert type(model[3].out_proj) is not Linear, "a subclass may do otherwise"
    torch.testing.assert_close(model[:3](x), expected)
    assert len(everywhere) == 2
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def test_what_is_not_float32_on_a_processor_stays_with_pytorch(
    everywhere: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = nn.Sequential(nn.Linear(8, 12)), torch.randn(6, 8)
    use_onednn(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16
    model.double()(x.double())
    model.to("meta", torch.float32)(x.to("meta"))
    assert not everywhere
    monkeypatch.setattr(onednn, "_WORTHWHILE", 6 * 8 * 12 + 1)
    model.to_empty(device="cpu")(x)
    assert not everywhere, "of small products the call costs more"


def test_a_compiled_model_takes_them_too(everywhere: list[int]) -> None:
    model, x = nn.Sequential(nn.Linear(8, 12), nn.Linear(12, 4)), torch.randn(6, 8)
    expected = torch.autograd.grad(model(x).square().sum(), [*model.parameters()])
    use_onednn(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(x).square().sum(), [*model.parameters()])
    assert everywhere
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("vendor_id : AuthenticAMD\nflags : avx2 avx512f", True),
        ("vendor_id : AuthenticAMD\nflags : avx2", False),
        ("vendor_id : GenuineIntel\nflags : avx2 avx512f", False),
        (None, False),
    ],
)
def test_which_processors(tmp_path: Path, told: str | None, expected: bool) -> None:
    if told is not None:
        (tmp_path / "cpuinfo").write_text(told)
    assert onednn.quicker(tmp_path / "cpuinfo") is expected


def test_a_run_takes_them_and_comes_to_the_same_weights_but_for_rounding(
    everywhere: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    few = (*SMALL, "trainer.max_epochs=1", "checkpoints.every_n_steps=1")
    found = newest(train_in(tmp_path / "onednn", *few))["state_dict"]
    assert everywhere
    monkeypatch.setattr(onednn, "quicker", lambda: False)
    expected = newest(train_in(tmp_path / "pytorch", *few))["state_dict"]
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-3, atol=1e-5)
