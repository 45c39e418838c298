"""Normalisers: equations, both paths, gradients, masks, and how they are worked out without much memory."""

from __future__ import annotations

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import entmax
import pytest
import torch
from conftest import python
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export
from torch.func import functional_call

from lab.attention import chunks, gpu_paths
from lab.attention.functional import attend, attend_explicit
from lab.attention.layers import CrossAttention, Tap
from lab.attention.normaliser import Normaliser
from lab.attention.normaliser_contract import check_normaliser, check_together
from lab.attention.normalisers.entmax import Entmax
from lab.attention.normalisers.hard import Hard
from lab.attention.normalisers.linear import Linear
from lab.attention.normalisers.local import Local
from lab.attention.normalisers.plus_one import PlusOne
from lab.attention.normalisers.polynomial import Polynomial
from lab.attention.normalisers.scaled import Scaled
from lab.attention.normalisers.sigmoid import Sigmoid
from lab.attention.normalisers.signed import Signed
from lab.attention.normalisers.softmax import Softmax
from lab.attention.normalisers.sparsemax import Sparsemax
from lab.attention.rules.adaptive import AdaptiveTemperature
from lab.attention.rules.fixed import Fixed
from lab.attention.rules.norm import NormSoftmax
from lab.config.compose import CONFIGS

READY: dict[str, Any] = {
    "softmax": Softmax,
    "plus_one": PlusOne,
    "plus_one_learned": partial(PlusOne, bias="learned", initial=0.3),
    "plus_one_length": partial(PlusOne, bias="length", initial=2.0),
    "sigmoid": Sigmoid,
    "sigmoid_learned": partial(Sigmoid, bias="learned"),
    "sigmoid_fixed": partial(Sigmoid, bias="fixed", initial=-1.0),
    "polynomial": Polynomial,
    "polynomial_normalised": partial(Polynomial, form="normalised"),
    "signed": Signed,
    "hard": Hard,
    "linear": Linear,
    "linear_bare": partial(Linear, normalised=False),
    "local": partial(Local, window=2),
    "scaled": partial(Scaled, initial=0.7),
    "sparsemax": Sparsemax,
    "entmax": Entmax,
}
# Queries and keys; the mask of the first has a row that sees nothing, the last is padding.
MASKS: dict[str, tuple[int, int, Tensor | None]] = {
    "none": (7, 9, None),
    "more queries": (9, 7, None),
    "causal": (8, 8, torch.ones(8, 8, dtype=torch.bool).tril(-1)),
    "padding": (6, 9, (torch.arange(9) < torch.tensor([[5], [9]])).view(2, 1, 1, 9)),
}
every = pytest.mark.parametrize("name", READY)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(name: str) -> Normaliser:
    """A normaliser of three heads of four, whose parameters are as if trained."""
    normaliser = READY[name](3, 4).double()
    with torch.no_grad():
        for index, parameter in enumerate(normaliser.parameters()):
            parameter.add_(0.3 * numbers(*parameter.shape, seed=index))
    return normaliser


def slopes(z: Tensor, *of: Tensor) -> list[Tensor]:
    """Derivatives of a weighted sum of z; 0 of what it does not depend on."""
    return list(torch.autograd.grad((z * numbers(*z.shape, seed=9)).sum(), of, materialize_grads=True))


def agree(one: list[Tensor], other: list[Tensor], tolerance: float = 1e-10) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@every
def test_both_paths_agree_in_value_and_gradient(name: str, mask: str, chunked: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 100 if chunked else 10**6)
    normaliser, (N, M, allowed) = made(name), MASKS[mask]
    rule, found = Fixed(3, 4, tau=0.7).double(), []
    for path in (attend, attend_explicit):
        q, k, v = (numbers(2, 3, rows, 4, seed=i).requires_grad_() for i, rows in enumerate((N, M, M)))
        z: Any = path(q, k, v, rule, allowed, normaliser)
        z = z if isinstance(z, Tensor) else z.z
        assert z.isfinite().all()
        found.append([z, *slopes(z, q, k, v, *normaliser.parameters())])
    agree(*found)
    assert all(slope.isfinite().all() for slope in found[0])


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", [name for name in READY if not name.startswith("linear")])
def test_a_bias_is_added_to_the_logits_on_both_paths(name: str, mask: str) -> None:
    normaliser, (N, M, allowed) = made(name), MASKS[mask]
    rule = NormSoftmax(3, 4, tau=0.7).double()
    q, k, v = (numbers(2, 3, rows, 4, seed=i).requires_grad_() for i, rows in enumerate((N, M, M)))
    bias = numbers(3, N, M, seed=4).requires_grad_()
    z = attend(q, k, v, rule, allowed, normaliser, bias=bias)
    seen = attend_explicit(q, k, v, rule, allowed, normaliser, bias=bias)
    agree([z, *slopes(z, q, k, v, bias)], [seen.z, *slopes(seen.z, q, k, v, bias)])
    # No temperature acts on the bias, and the rule does not see it.
    without = attend_explicit(q, k, v, rule, allowed, normaliser).logits
    torch.testing.assert_close(seen.logits, without + bias)
    used = normaliser.allowed(allowed, q, k)
    torch.testing.assert_close(seen.weights, normaliser.weights(seen.logits, used))
    assert used is None or not z[(~used.any(-1)).expand(z.shape[:-1])].any()


def test_a_bias_is_refused_by_what_cannot_heed_it() -> None:
    q, bias = numbers(1, 3, 5, 4), numbers(5, 5)
    with pytest.raises(ValueError, match="AdaptiveTemperature computes its temperature from the weights of a softmax"):
        attend(q, q, q, AdaptiveTemperature(3, 4), bias=bias)
    with pytest.raises(ValueError, match="Linear does not compute weights from scores"):
        attend(q, q, q, Fixed(3, 4), None, Linear(3, 4), bias=bias)


@every
def test_keys_of_one_head_serve_all(name: str) -> None:
    normaliser = made(name)
    q, k, v = numbers(2, 3, 6, 4), numbers(2, 1, 7, 4, seed=1), numbers(2, 1, 7, 4, seed=2)
    want = attend(q, k.expand(2, 3, 7, 4).clone(), v.expand(2, 3, 7, 4).clone(), Fixed(3, 4), None, normaliser)
    for one in (k, k.expand(2, 3, 7, 4)):
        other = v.expand(2, 3, 7, 4) if one is not k else v
        torch.testing.assert_close(attend(q, one, other, Fixed(3, 4), None, normaliser), want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", [name for name in READY if name not in ("softmax", "hard")])
def test_gradients_by_finite_differences(name: str, masked: bool) -> None:
    normaliser = made(name)
    mask = torch.ones(3, 4, dtype=torch.bool).tril(1) if masked else None
    logits = (1.5 * numbers(1, 3, 3, 4)).requires_grad_()

    def weights(logits: Tensor, *parameters: Tensor) -> Tensor:
        assert len(parameters) == len(list(normaliser.parameters()))
        return normaliser.weights(logits if mask is None else logits.masked_fill(~mask, -math.inf), mask)

    assert torch.autograd.gradcheck(weights, (logits, *normaliser.parameters()), fast_mode=True)


@every
@pytest.mark.parametrize("size", [0.0, 1e-6, 1e3, 1e9])
def test_logits_of_any_size_give_finite_weights_and_gradients(name: str, size: float) -> None:
    normaliser, logits = made(name).float(), size * numbers(1, 3, 5, 6).float()
    # Those of linear attention are products of positive features.
    logits = (logits.abs() if name.startswith("linear") else logits).requires_grad_()
    weights = normaliser.weights(logits)
    assert weights.isfinite().all()
    assert name in ("polynomial", "linear_bare") or weights.abs().max() <= 1.5
    assert torch.autograd.grad((weights * numbers(5, 6).float()).sum(), logits)[0].isfinite().all()


def test_weights_are_their_equations() -> None:
    logits = numbers(5)

    def of(normaliser: Normaliser) -> Tensor:
        return normaliser.double().weights(logits.view(1, 1, 1, 5))[0, 0, 0].detach()

    size, x = logits.abs().exp(), logits - logits.mean()
    for normaliser, want in (
        (PlusOne(1, 4, initial=0.5), logits.exp() / (0.5 + logits.exp().sum())),
        (Sigmoid(1, 4), 1 / (1 + 5 * (-logits).exp())),
        (Sigmoid(1, 4, bias="fixed", initial=2.0), (logits + 2).sigmoid()),
        (Polynomial(1, 4), logits**3 / math.sqrt(5)),
        (Polynomial(1, 4, power=5, form="normalised"), x**5 / (x.abs() ** 5).sum()),
        (Signed(1, 4), logits.sign() * size / size.sum()),
        (Hard(1, 4), (logits == logits.max()).double()),
        (Scaled(1, 4, initial=2.0), 2 * logits.softmax(0)),
        (Sparsemax(1, 4), entmax.sparsemax(logits, 0)),
        (Entmax(1, 4), entmax.entmax15(logits, 0)),
    ):
        torch.testing.assert_close(of(normaliser), want, rtol=1e-6, atol=1e-12, msg=type(normaliser).__name__)


def test_linear_attention_is_its_equation() -> None:
    q, k, v = numbers(2, 3, 5, 4), numbers(2, 3, 6, 4, seed=1), numbers(2, 3, 6, 4, seed=2)
    phi_q, phi_k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1
    products = phi_q @ phi_k.mT
    rule = Fixed(3, 4, tau=1.0).double()
    torch.testing.assert_close(attend(q, k, v, rule, None, Linear(3, 4, normalised=False)), products @ v)
    want = products / products.sum(-1, keepdim=True) @ v
    torch.testing.assert_close(attend(q, k, v, rule, None, Linear(3, 4)), want)


@pytest.mark.parametrize("make", [Sparsemax, Entmax])
def test_sparse_weights_are_the_package_s(make: Any) -> None:
    theirs = {Sparsemax: entmax.sparsemax, Entmax: entmax.entmax15}[make]
    logits = numbers(40, 1, 7, 33) * torch.logspace(-3, 3, 40).view(-1, 1, 1, 1)
    ours, other = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    w, want = make(1, 4).weights(ours), theirs(other, -1)
    agree([w, *slopes(w, ours)], [want, *slopes(want, other)])
    assert (w == 0).any() and (w[0] > 0).all()


def test_hard_attention_shares_ties_and_has_the_gradient_of_softmax() -> None:
    q, k, v = numbers(1, 3, 2, 4), numbers(1, 3, 5, 4, seed=1), numbers(1, 3, 5, 4, seed=2)
    tied = Hard(3, 4).weights(torch.tensor([[1.0, 3.0, 3.0, 0.0]]))
    assert tied.tolist() == [[0, 0.5, 0.5, 0]]
    found = []
    for normaliser in (Hard(3, 4), Softmax(3, 4)):
        q.requires_grad_()
        found.append(slopes(attend(q, k, v, Fixed(3, 4), None, normaliser), q))
    agree(*found)


def test_a_sink_takes_what_it_should() -> None:
    q, k, v = numbers(2, 3, 6, 4), numbers(2, 3, 7, 4, seed=1), numbers(2, 3, 7, 4, seed=2)
    rule = Fixed(3, 4).double()
    for bias in ("fixed", "learned", "length"):
        for b in (0.2, 3.0, 1e-12):
            seen = attend_explicit(q, k, v, rule, None, PlusOne(3, 4, bias=bias, initial=b).double())
            total = seen.logits.exp().sum(-1)
            torch.testing.assert_close(seen.weights.sum(-1), total / (b + total), rtol=1e-6, atol=0)
        plain = attend(q, k, v, rule, None, Softmax(3, 4))
        torch.testing.assert_close(seen.z, plain, rtol=0, atol=1e-10)
    far = attend(q, -1e3 * q[..., :1, :], v[..., :1, :], rule, None, PlusOne(3, 4).double())
    assert far[..., 0, :].abs().max() == 0  # inaction


def test_a_window_is_a_window() -> None:
    ones = Local(1, 4, window=1, first=1)
    allowed: Any = ones.allowed(None, torch.zeros(5, 4), torch.zeros(5, 4))
    assert allowed.int().tolist() == [
        [1, 1, 1, 1, 1],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 0, 1, 1, 1],
        [1, 0, 0, 1, 1],
    ]
    last: Any = ones.allowed(torch.arange(5) > 0, torch.zeros(1, 4), torch.zeros(5, 4))
    assert last.int().tolist() == [[0, 1, 0, 1, 1]]  # the only query is the last one, and the first key is padding


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(
    "mask", [None, torch.arange(150).expand(2, 1, 1, 150) >= torch.tensor([0, 140]).view(2, 1, 1, 1)]
)
def test_blocks_of_a_window_give_the_numbers_of_its_mask(mask: torch.Tensor | None) -> None:
    """FlexAttention's reference on the processor: two blocks, padding, and queries that may attend to nothing."""
    q, k, v = (torch.randn(2, 3, 150, 8, dtype=torch.float64) for _ in range(3))
    for first in (0, 1):
        allowed = Local(3, 8, first=first).allowed(mask, q, k)
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, allowed, scale=1.0)
        torch.testing.assert_close(gpu_paths.by_blocks(q, k, v, allowed), want, rtol=0, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("padded", [False, True])
def test_flex_attention_has_the_gradients_of_the_mask(padded: bool) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    tensors = [torch.randn(2, 3, 300, 64, device="cuda", requires_grad=True) for _ in range(3)]
    mask = (torch.arange(300, device="cuda") >= 7) if padded else None
    found = []
    for flex in (True, False):
        z = attend(*tensors, Fixed(3, 64).cuda(), mask, Local(3, 64, window=5, flex=flex))
        found.append([z, *torch.autograd.grad(z.square().sum(), tensors)])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


def test_flex_is_taken_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    monkeypatch.setattr(gpu_paths, "by_blocks", lambda q, k, v, mask: taken.append(mask.shape) or v)
    for device, flex in product(("cpu", "cuda"), (False, True)):
        with FakeTensorMode():
            x = torch.empty(2, 3, 40, 8, device=device)
            Local(3, 8, flex=flex).attend(x, x, x, torch.empty(40, 40, dtype=torch.bool, device=device))
    assert taken == [(40, 40)]


@pytest.mark.parametrize(("padding", "empty"), [(0, 0), (3, 0), (0, 4), (3, 4)])
def test_a_window_knows_padding_and_empty_places(padding: int, empty: int) -> None:
    """Six tokens, the last two of which are queries, padded on the left and in a cache of fixed size."""
    rule, local = Fixed(1, 4), Local(1, 4, window=1)
    q, k, v = (torch.randn(1, 1, rows, 4) for rows in (2, 6, 6))
    causal = torch.ones(2, 6, dtype=torch.bool).tril(4)
    alone = attend(q, k, v, rule, causal, local)
    k, v = (torch.nn.functional.pad(x, (0, 0, padding, empty), value=9.0) for x in (k, v))
    mask = torch.nn.functional.pad(causal, (padding, empty), value=False)
    torch.testing.assert_close(attend(q, k, v, rule, mask, local), alone)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("padding", [0, 3])
def test_a_window_counts_places_in_each_packed_sequence(causal: bool, first: int, padding: int) -> None:
    """On every path: the fused kernel, written out, beside a bias, by blocks, and the last queries of a cache."""
    lengths, rule, local = (9, 1, 14), Fixed(2, 8), Local(2, 8, window=2, first=first)
    q, k, v = (torch.randn(2, 2, padding + sum(lengths), 8) for _ in range(3))
    spans = [slice(padding + stop - n, padding + stop) for n, stop in zip(lengths, accumulate(lengths), strict=True)]
    mask = torch.zeros(q.shape[-2], q.shape[-2], dtype=torch.bool)
    for span in spans:
        mask[span, span] = True
    mask = mask.tril() if causal else mask
    alone = [attend(*(x[..., one, :] for x in (q, k, v)), rule, mask[one, one], local) for one in spans]
    want = torch.cat([torch.zeros(2, 2, padding, 8), *alone], -2)
    rescaled = q / rule.tau
    for z in (
        attend(q, k, v, rule, mask, local),
        attend_explicit(q, k, v, rule, mask, local).z,
        attend(q, k, v, rule, mask, local, bias=torch.zeros(())),
        gpu_paths.by_blocks(rescaled, k, v, local.allowed(mask, q, k)),
    ):
        torch.testing.assert_close(z, want, rtol=1e-5, atol=1e-6)
    if causal:
        last = slice(-16, None)  # of the last two sequences
        z = attend(q[..., last, :], k, v, rule, mask[last], local)
        torch.testing.assert_close(z, want[..., last, :], rtol=1e-5, atol=1e-6)


def test_a_window_within_a_window_of_the_model_has_no_first_tokens_of_its_own() -> None:
    band = torch.ones(9, 9, dtype=torch.bool).tril().triu(-4)
    x = torch.zeros(9, 4)
    allowed = Local(1, 4, window=1, first=1).allowed(band, x, x)
    assert torch.equal(allowed, band & ((torch.arange(9)[:, None] - torch.arange(9) <= 1) | (torch.arange(9) == 0)))


def test_a_window_under_a_mask_of_later_keys_alone_stays_a_window() -> None:
    later = torch.ones(8, 8, dtype=torch.bool).triu()
    x = torch.zeros(8, 4)
    assert Local(1, 4, window=1, first=1).allowed(later, x, x).sum(-1).tolist() == [8, 2, 2, 2, 2, 2, 2, 1]


@pytest.mark.parametrize("dim", [8, 64, 63])
def test_a_sink_of_another_size_leaves_channels_that_fused_kernels_of_a_gpu_take(dim: int) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        seen: list[int] = []
        with torch.device("cuda"):
            q, k, v = (torch.randn(1, 2, 9, dim) for _ in range(3))
            sink = PlusOne(2, dim, bias="learned")

        def fused(q: Tensor, k: Tensor, v: Tensor, mask: Any = None) -> Tensor:
            seen.extend(x.shape[-1] for x in (q, k, v))
            return v

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lab.attention.fused.attend", fused)
            assert sink.attend(q, k, v).shape[-1] == dim
        assert len(set(seen)) == 1 and seen[0] % 8 == 0


class Layer(nn.Module):
    """A layer of three heads of four, as it is stacked over seeds."""

    def __init__(self, name: str, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.inner, self.rule, self.normaliser = nn.Linear(12, 36), Fixed(3, 4), made(name)
        self.double()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        return attend(q, k, v, self.rule, mask, self.normaliser)


@pytest.mark.parametrize("mask", [None, torch.ones(6, 6, dtype=torch.bool).tril(-1)], ids=["unmasked", "causal"])
@every
def test_seeds_side_by_side_have_their_own_gradients(name: str, mask: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 72)
    layers, x = [Layer(name, seed) for seed in range(3)], numbers(3, 2, 6, 12)
    names = [key for key, _ in layers[0].named_parameters()]
    stacked = {
        key: torch.stack([layer.get_parameter(key).detach() for layer in layers]).requires_grad_() for key in names
    }
    z = torch.func.vmap(lambda own, x: functional_call(layers[0], own, (x, mask)))(stacked, x)
    together = slopes(z, *stacked.values())
    weight = numbers(*z.shape, seed=9)
    for seed, layer in enumerate(layers):
        alone = layer(x[seed], mask)
        own = torch.autograd.grad(
            (alone * weight[seed]).sum(), [layer.get_parameter(key) for key in names], materialize_grads=True
        )
        agree([alone, *own], [z[seed], *(slope[seed] for slope in together)])


@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        *((name, False) for name in ("plus_one_length", "linear", "entmax")),
        *((name, True) for name in ("plus_one_length", "sparsemax")),
    ],
)
def test_a_compiled_layer_is_the_eager_one(name: str, seeds: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 72)
    layer, x = Layer(name), numbers(3, 2, 6, 12)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    found = []
    for compiled in (False, True):
        run: Any = torch.func.vmap(partial(layer, mask=mask)) if seeds else partial(layer, mask=mask)
        run = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=False) if compiled else run
        z = run(x if seeds else x[0])
        found.append([z, *slopes(z, *layer.parameters())])
    agree(*found)


@every
def test_sixteen_bit_is_near_full_precision(name: str) -> None:
    if name == "hard":
        pytest.skip("the largest logit in 16 bit may be another one")
    normaliser = made(name).float()
    q, k, v = (numbers(2, 3, 40, 4, seed=i).float() for i in range(3))
    want = attend(q, k, v, Fixed(3, 4), None, normaliser)
    with torch.autocast("cpu", torch.bfloat16):
        z = attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), Fixed(3, 4), None, normaliser)
    assert z.dtype == torch.bfloat16
    assert (z - want).abs().max() <= 0.05 * want.abs().max()


def test_logits_of_sixteen_bit_are_not_rounded() -> None:
    """Else the largest ones of a row would tie."""
    normaliser = made("hard").float()
    q, k, v = (numbers(2, 3, 200, 4, seed=i).bfloat16() for i in range(3))
    z = normaliser(q, k, None, v)
    torch.testing.assert_close(z, attend_explicit(q, k, v, Fixed(3, 4, tau=1.0), None, normaliser).z)
    far = made("sparsemax").float()((300 * q).half(), (300 * k).half(), None, v.half())
    assert far.isfinite().all()


def test_memory_of_chunks_is_bounded(monkeypatch: Any) -> None:
    """What is kept for the backward pass: inputs and outputs, no matrix of queries and keys."""

    def kept() -> int:
        sizes: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        x = [torch.zeros(1, 3, 512, 4, requires_grad=True) for _ in range(3)]
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            attend(*x, Fixed(3, 4), None, Sigmoid(3, 4))
        return sum(sizes.values())

    whole = kept()
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 3 * 512 * 64)
    assert kept() < whole / 10


def test_chunks_take_no_more_memory_for_more_queries(tmp_path: Path) -> None:
    program = """
import resource
import torch
from lab.attention.functional import attend
from lab.attention.normalisers.sigmoid import Sigmoid
from lab.attention.rules.fixed import Fixed

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def step(tokens):
    x = [torch.zeros(1, 1, tokens, 8, requires_grad=True) for _ in range(3)]
    attend(*x, Fixed(1, 8), None, Sigmoid(1, 8)).sum().backward()

step(200)
before = peak()
step(16_000)
print((peak() - before) // 1024)
"""
    # All scores take 977 MiB; a chunk takes 16 MiB.
    assert int(python("-c", program, folder=tmp_path).stdout) < 500


def test_threads_that_train_one_normaliser_leave_it_and_each_other_alone(monkeypatch: Any) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 72)
    normaliser, rule = made("sigmoid_learned"), Fixed(3, 4, tau=0.7).double()
    given, parameters = [numbers(3, 1, 3, 12, 4, seed=seed) for seed in range(4)], list(normaliser.parameters())

    def step(x: Tensor) -> list[Tensor]:
        q, k, v = (t.clone().requires_grad_() for t in x)
        z = attend(q, k, v, rule, None, normaliser)
        return [z.detach(), *slopes(z, q, k, v, *parameters)]

    want, interval = [step(x) for x in given], sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(5):
                for found, alone in zip(pool.map(step, given), want, strict=True):
                    agree(found, alone)
    finally:
        sys.setswitchinterval(interval)
    assert all(one is other for one, other in zip(normaliser.parameters(), parameters, strict=True))


class Roundabout(Normaliser):
    """Reaches its own parameters in the ways that modules of other people do."""

    total, couples_queries, shift_invariant = "anything", False, False

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__(heads, head_dim)
        self.inner = nn.utils.parametrizations.weight_norm(nn.Linear(1, 1))
        self.listed = [self.inner]
        self.wrapped = nn.Linear(1, 1)
        # As accelerate puts its hooks around a module.
        self.wrapped.forward = partial(nn.Linear.forward, self.wrapped)  # type: ignore[method-assign]

    def weights(self, logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
        x = logits_BHNM.unsqueeze(-1)
        weights = (self.listed[0](x) * self.wrapped(x)).squeeze(-1).sigmoid()
        return weights if mask is None else weights * mask


def test_chunks_reach_all_parameters_of_a_module(monkeypatch: Any) -> None:
    torch.manual_seed(0)
    normaliser, rule, found = Roundabout(3, 4).double(), Fixed(3, 4, tau=0.7).double(), []
    for chunk in (40, 10**6):
        monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", chunk)
        q, k, v = (numbers(2, 3, 8, 4, seed=i).requires_grad_() for i in range(3))
        z = attend(q, k, v, rule, None, normaliser)
        found.append([z, *slopes(z, q, k, v, *normaliser.parameters())])
    agree(*found)
    assert all(slope.any() for slope in found[0])


def test_second_derivatives_go_through_chunks(monkeypatch: Any) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 40)
    normaliser, rule = made("sigmoid_learned"), Fixed(3, 4, tau=0.7).double()
    x = [numbers(1, 3, 6, 4, seed=seed).requires_grad_() for seed in range(3)]

    def squared_slopes(chunk: int) -> list[Tensor]:
        monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", chunk)
        of = [*x, *normaliser.parameters()]
        first = torch.autograd.grad(attend(*x, rule, None, normaliser).square().sum(), of, create_graph=True)
        return list(torch.autograd.grad(sum(slope.square().sum() for slope in first), of))

    agree(squared_slopes(40), squared_slopes(10**6))


@pytest.mark.parametrize("name", ["sigmoid_learned", "plus_one_length"])
def test_an_exported_layer_takes_batches_and_lengths_of_any_size(name: str) -> None:
    layer, sizes = Layer(name), {"x": {0: Dim("batch", max=64), 1: Dim("n", min=18, max=99)}}
    exported = export(layer, (numbers(2, 40, 12),), dynamic_shapes=sizes).module()
    x = numbers(3, 20, 12, seed=1)
    torch.testing.assert_close(exported(x), layer(x))


def test_a_length_of_no_keys_counts_as_one() -> None:
    z = attend(
        numbers(1, 3, 5, 4), numbers(1, 3, 0, 4), numbers(1, 3, 0, 4), Fixed(3, 4), None, made("plus_one_length")
    )
    assert not z.any()


class Fading(Normaliser):
    """Weights of a query fade with its place from the end."""

    def weights(self, logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
        place_N1 = torch.arange(logits_BHNM.shape[-2], 0, -1, dtype=logits_BHNM.dtype)[:, None]
        return Softmax(1, 1).weights(logits_BHNM, mask) / place_N1


def test_a_query_whose_weights_depend_on_its_place_alone_is_coupled() -> None:
    normaliser = Fading(heads=2, head_dim=4)
    check_normaliser(normaliser)
    assert normaliser.couples_queries is True


class Distance(Normaliser):
    """Logits that are no scores: attention by distance, whose weights a shift does not change."""

    total = "one"
    takes_temperature = False

    def scores(self, q_BHND: Tensor, k_BHMD: Tensor) -> Tensor:
        return -torch.cdist(q_BHND, k_BHMD)

    def weights(self, logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
        return Softmax(1, 1).weights(logits_BHNM, mask)


@pytest.mark.parametrize("make", [Distance, Scaled, partial(Polynomial, form="normalised")])
def test_a_single_query_is_taken_into_the_basis_of_tokens_only_where_that_is_the_same(make: Any) -> None:
    """A short cut that counts on logits that are scores, and on weights that add up to one."""
    torch.manual_seed(0)
    rule, normaliser = Fixed(2, 4), make(2, 4)
    rule.weighs_channels = False
    check_normaliser(normaliser)
    assert normaliser.shift_invariant is True
    with torch.no_grad():
        for parameter in normaliser.parameters():
            parameter.mul_(2)
    layer, x = CrossAttention(8, 2, rule, normaliser), torch.randn(3, 5, 8)
    alone = layer(x[:, :1], x)
    layer.tap = Tap(explicit=True)
    torch.testing.assert_close(alone, layer(x[:, :1], x))


# Also one that has a config and stands in no list here.
FOUND: dict[str, Any] = {
    path.stem: instantiate(OmegaConf.load(path).normaliser) or Softmax
    for path in sorted((CONFIGS / "softmax" / "normaliser").glob("*.yaml"))
}


@pytest.mark.parametrize("name", FOUND | READY)
def test_the_ready_ones_pass_the_check_at_any_size(name: str) -> None:
    for heads, head_dim in ((1, 1), (4, 16), (2, 3)):
        normaliser = (FOUND | READY)[name](heads, head_dim)
        before = (normaliser.shift_invariant, normaliser.couples_queries)
        check_normaliser(normaliser)
        found = (normaliser.shift_invariant, normaliser.couples_queries)
        assert found == before, "declare shift_invariant and couples_queries in the class"


class Largest(Normaliser):
    """The mistake that is made first: the weights of the largest logits alone."""

    total = "one"

    def weights(self, logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
        return logits_BHNM.topk(2).values.softmax(-1)


def test_weights_of_another_shape_and_an_unknown_total_are_told(monkeypatch: Any) -> None:
    with pytest.raises(ValueError, match=r"Largest.weights must return .* logits \[2, 3, 5, 7\], not \[2, 3, 5, 2\]"):
        check_normaliser(Largest(3, 4))
    monkeypatch.setattr(Largest, "total", "On")
    with pytest.raises(ValueError, match=r'Largest.total=.On. is wrong: it must be "one" or "at most one" or'):
        check_normaliser(Largest(3, 4))


def test_pairs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="NormSoftmax does not go with the normaliser Linear"):
        check_together(NormSoftmax(3, 4), Linear(3, 4))

    class OfWeights(Fixed):
        assumes_softmax = True

    check_together(OfWeights(3, 4), Hard(3, 4))
    with pytest.raises(ValueError, match="OfWeights computes its temperature from the weights of a softmax, but those"):
        check_together(OfWeights(3, 4), Signed(3, 4))


def test_dropout_acts_in_models_with_a_bias_too() -> None:
    v = torch.ones(1, 1, 6, 4)
    q, k = torch.randn(2, 1, 1, 6, 4).unbind(0)
    dropped = attend(q, k, v, Fixed(1, 4), dropout=0.5, bias=torch.zeros(6, 6))
    assert not torch.allclose(dropped, v)
    torch.testing.assert_close(attend(q, k, v, Fixed(1, 4), bias=torch.zeros(6, 6)), v)


def test_scores_that_differ_by_rounding_alone_get_no_weight_of_the_polynomial() -> None:
    almost_equal = torch.tensor([[[[5.0, 5.0000005, 5.0, 5.0]]]])
    assert not Polynomial(1, 4, form="normalised").weights(almost_equal).any()
