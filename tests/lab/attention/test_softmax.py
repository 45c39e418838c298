"""Temperature rules against brute force, on the scores themselves."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch.utils._python_dispatch import TorchDispatchMode

from lab.attention import chunks
from lab.attention.contract import check_constructor
from lab.attention.functional import attend
from lab.attention.row_statistics import row_entropy
from lab.attention.rules.adaptive import AdaptiveTemperature
from lab.attention.rules.fixed import Fixed
from lab.attention.rules.learnable import LearnableTemperature
from lab.attention.rules.norm import NormSoftmax
from lab.attention.schedule import HeatTreatment, check_schedule
from lab.attention.score_variance import RowVariance
from lab.config.check import check
from lab.console import LabError

# Many and few tokens: NormSoftmax takes another way for few.
SHAPES = [(2, 3, 20, 20, 8), (2, 3, 1, 5, 8), (2, 3, 5, 30, 4)]


def qk(shape, dtype=torch.float64):
    B, H, N, M, D = shape
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(B, H, N, D, generator=generator, dtype=dtype)
    return q, torch.randn(B, H, M, D, generator=generator, dtype=dtype) + 0.7


def check_options(made: type, path: str = "softmax", **options) -> None:
    """Checks a config with these options of a rule, or of the schedule."""
    node = {"_target_": f"{made.__module__}.{made.__qualname__}", "_partial_": True, **options}
    check(OmegaConf.create({"softmax": node if path == "softmax" else {"schedule": node}}))


def norm(H, D, **options) -> NormSoftmax:
    return NormSoftmax(H, D, **options).double()


class Heats:
    """A schedule that has what ``parts`` says."""

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


class Counts(Heats):
    """A schedule that goes on with each call."""

    by, calls = "step", 0

    def __call__(self, progress: float, default_tau: float) -> float:
        self.calls += 1
        return 1.0 + self.calls


class Calls(Heats):
    def __call__(self, progress: float, default_tau: float) -> Any:
        return self.tau(progress)  # type: ignore[attr-defined]


class Short(Heats):
    """A schedule that leaves out the rule's own tau."""

    by = "step"

    def __call__(self, progress: float) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (None, "None is not a schedule: give one, such as HeatTreatment"),
        (HeatTreatment, "HeatTreatment'> is not a schedule"),
        (Heats(), "Heats.by must say when tau is set anew, epoch or step, and is None"),
        (Calls(by="week"), "and is 'week'"),
        (Heats(by="step"), r"needs __call__\(self, progress, default_tau\)"),
        (Short(), r"Short.__call__ does not take .*: begin it with def __call__\(self, progress, default_tau\)$"),
        (Calls(by="step", tau=lambda progress: None), "gives tau=None when 0% of training is done"),
        (Calls(by="step", tau=lambda progress: -1.0 if 0.8 < progress < 0.9 else 1.0), "gives tau=-1.0 when 81% of"),
        (Calls(by="step", tau=lambda progress: 1 - progress), "gives tau=0.0 when 100% of training is done"),
        (Counts(), "gives tau=2.0 when 0% of training is done, and 3.0 when asked again"),
    ],
)
def test_a_schedule_of_ones_own_is_tried(schedule: object, words: str) -> None:
    check_schedule(HeatTreatment())
    check_schedule(Calls(by="step", tau=lambda progress: 1 + progress))
    with pytest.raises(ValueError, match=words):
        check_schedule(schedule)


@pytest.mark.parametrize("make", [None, "fixed", Fixed(4, 8)])
def test_what_is_no_class_of_rules_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="is no class of rules or normalisers: give one, such as Fixed"):
        check_constructor(make)


def test_fixed_is_the_paper_s_scale() -> None:
    q, k = qk(SHAPES[0])
    assert Fixed(3, 64).inverse_temperature(q, k).item() == pytest.approx(0.125)
    assert Fixed(3, 64, tau=1 / 3).inverse_temperature(q, k).item() == pytest.approx(3)


@pytest.mark.parametrize("tau", [0.0, -1.0, math.inf, math.nan])
def test_a_temperature_is_positive(tau) -> None:
    with pytest.raises(ValueError, match=r"softmax\.tau must be positive"):
        Fixed(1, 4, tau=tau)
    for made in (Fixed, NormSoftmax, LearnableTemperature, AdaptiveTemperature):
        with pytest.raises(LabError, match=rf"softmax\.tau={tau} is wrong"):
            check_options(made, tau=tau)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("over", ["row", "block"])
@pytest.mark.parametrize("statistic", ["var", "std"])
@pytest.mark.parametrize("tau", [0.5, 1e6])
def test_norm_softmax_is_the_spread_of_the_scores(shape, over, statistic, tau) -> None:
    q, k = qk(shape)
    scores = q @ k.transpose(-2, -1)
    axes = -1 if over == "row" else (-2, -1)
    spread = scores.var(axes, correction=0) if statistic == "var" else scores.std(axes, correction=1)
    want = 1 / spread.clamp_max(tau)
    got = norm(shape[1], shape[-1], tau=tau, statistic=statistic, over=over).inverse_temperature(q, k)
    want = want[..., None] if over == "row" else want[..., None, None]
    torch.testing.assert_close(got, want.expand_as(got), rtol=1e-10, atol=0)


@pytest.mark.parametrize("over", ["row", "block"])
@pytest.mark.parametrize("statistic", ["var", "std"])
def test_norm_softmax_under_a_mask(over, statistic) -> None:
    shape = SHAPES[0]
    q, k = qk(shape)
    rule = norm(3, 8, tau=1e6, statistic=statistic, over=over)
    everything = torch.ones(20, 20, dtype=torch.bool)
    torch.testing.assert_close(
        rule.inverse_temperature(q, k, everything), rule.inverse_temperature(q, k), rtol=1e-10, atol=0
    )
    causal = everything.tril()
    got = rule.inverse_temperature(q, k, causal).expand(2, 3, 20, 1)
    scores = q @ k.transpose(-2, -1)
    for row in (1, 7, 19):
        seen = scores[1, 2, row, : row + 1] if over == "row" else scores[1, 2][causal]
        spread = seen.var(correction=0) if statistic == "var" else seen.std(correction=1)
        assert got[1, 2, row, 0].item() == pytest.approx(1 / spread.item(), rel=1e-10)


@pytest.mark.parametrize("statistic", ["var", "std"])
@pytest.mark.parametrize("over", ["row", "block"])
@pytest.mark.parametrize("shape", SHAPES)
def test_equal_scores_stay_finite(statistic, over, shape) -> None:
    q, k = qk(shape)
    k = k[..., :1, :].expand_as(k).clone() * 0
    q.requires_grad_()
    k.requires_grad_()
    beta = norm(shape[1], shape[-1], statistic=statistic, over=over).inverse_temperature(q, k)
    (q * beta).sum().backward()
    assert torch.isfinite(beta).all()
    assert torch.isfinite(q.grad).all() and torch.isfinite(k.grad).all()


def test_gradient_flows_through_the_spread() -> None:
    q, k = (t.requires_grad_() for t in qk((1, 2, 12, 12, 3)))
    rule = norm(2, 3, tau=1e6)
    assert torch.autograd.gradcheck(lambda q, k: rule.inverse_temperature(q, k), (q, k))


@pytest.mark.parametrize(
    "options",
    [{"statistic": "median"}, {"over": "head"}],
)
def test_norm_options_are_checked(options) -> None:
    with pytest.raises(LabError, match=r"softmax\.\w+=\S+ is wrong: "):
        check_options(NormSoftmax, **options)


@pytest.mark.parametrize("options", [{"when": "never"}, {"coefficients": []}, {"gate": "wide"}])
def test_adaptive_options_are_checked(options) -> None:
    with pytest.raises(LabError, match=r"softmax\.\w+=\S+ is wrong: "):
        check_options(AdaptiveTemperature, **options)


@pytest.mark.parametrize("parametrisation", ["raw", "log", "tanh", "sigmoid"])
@pytest.mark.parametrize(("granularity", "count"), [("layer_head", 3), ("layer", 1), ("head", 3), ("channel", 24)])
def test_learnable_starts_where_it_is_told(parametrisation, granularity, count) -> None:
    rule = LearnableTemperature(3, 8, granularity=granularity, parametrisation=parametrisation, initial=1.5)
    q, k = qk(SHAPES[0], torch.float32)
    beta = rule.inverse_temperature(q, k)
    torch.testing.assert_close(beta.expand(3, 20, 8), torch.full((3, 20, 8), 1.5 / math.sqrt(8)))
    assert rule.theta.numel() == count
    assert rule.temperatures()["factor"].numel() == count
    beta.sum().backward()
    assert (rule.theta.grad != 0).all()


@pytest.mark.parametrize(
    "options",
    [
        {"parametrisation": "log", "initial": 0.0},
        {"parametrisation": "tanh", "initial": 2.0},
        {"parametrisation": "sigmoid", "initial": -1.0},
        {"limit": 5.0},
        {"parametrisation": "log", "limit": 5.0},
    ],
)
def test_an_initial_value_or_a_limit_without_a_meaning_is_refused(options) -> None:
    with pytest.raises(ValueError, match=r"softmax\."):
        LearnableTemperature(1, 4, **options)


def test_a_whole_number_is_an_initial_value_too() -> None:
    assert LearnableTemperature(2, 4, initial=2).factor().tolist() == [[[2.0]], [[2.0]]]


@pytest.mark.parametrize("options", [{"granularity": "token"}, {"parametrisation": "square"}, {"limit": 0.0}])
def test_learnable_options_are_checked(options) -> None:
    with pytest.raises(LabError, match=r"softmax\.\w+=\S+ is wrong: "):
        check_options(LearnableTemperature, **options)


def brute_entropy(scores: torch.Tensor) -> torch.Tensor:
    p = scores.softmax(-1)
    return -(p * p.clamp_min(1e-300).log()).sum(-1, keepdim=True)


def test_entropy_of_rows(monkeypatch) -> None:
    q, k = qk(SHAPES[0])
    want = brute_entropy(q @ k.transpose(-2, -1))
    torch.testing.assert_close(row_entropy(q, k), want, rtol=1e-10, atol=1e-12)
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 60)
    torch.testing.assert_close(row_entropy(q, k), want, rtol=1e-10, atol=1e-12)
    causal = torch.ones(20, 20, dtype=torch.bool).tril()
    scores = (q @ k.transpose(-2, -1)).masked_fill(~causal, -math.inf)
    masked = row_entropy(q, k, causal)
    torch.testing.assert_close(masked, brute_entropy(scores), rtol=1e-10, atol=1e-12)
    assert masked[..., 0, 0].abs().max() == 0


def test_adaptive_temperature_is_the_polynomial_above_the_gate() -> None:
    q, k = qk(SHAPES[0])
    rule = AdaptiveTemperature(3, 8).double().eval()
    entropy = brute_entropy(q @ k.transpose(-2, -1) / rule.tau)
    H = entropy
    polynomial = -0.037 * H**4 + 0.481 * H**3 - 2.3 * H**2 + 4.917 * H - 1.791
    factor = torch.where(H > 0.5, polynomial.clamp_min(1), torch.ones_like(H))
    want = factor / rule.tau
    torch.testing.assert_close(rule.inverse_temperature(q, k), want, rtol=1e-9, atol=0)
    assert (factor > 1).any()
    few = torch.tensor([0.1, 0.49])
    assert rule.beta(few).tolist() == [1, 1]


def test_adaptive_temperature_at_inference_only() -> None:
    q, k = qk(SHAPES[0])
    for when, changes in (("inference", False), ("always", True)):
        rule = AdaptiveTemperature(3, 8, when=when).double().train()
        plain = torch.full((1,), 1 / math.sqrt(8), dtype=torch.float64)
        same = torch.allclose(rule.inverse_temperature(q, k), plain, rtol=1e-6)
        assert same is not changes


def test_heat_treatment_as_run_in_the_paper() -> None:
    schedule = HeatTreatment()
    beta = [1 / schedule(progress / 300, 8.0) for progress in range(301)]
    assert beta[0] == pytest.approx(3)
    assert beta[75] == pytest.approx((3 + 0.125) / 2)
    assert all(b == pytest.approx(0.125) for b in beta[150:])
    assert all(a > b for a, b in pairwise(beta[:151]))


def test_schedules_in_temperature_and_linear() -> None:
    linear = HeatTreatment(start=1, end=5, share=1.0, shape="linear", quantity="temperature")
    assert [linear(p, 8.0) for p in (0, 0.25, 1)] == pytest.approx([1, 2, 5])
    cosine = HeatTreatment(start=1, end=5, share=0.5, quantity="temperature")
    assert [cosine(p, 8.0) for p in (0, 0.25, 0.5, 0.9)] == pytest.approx([1, 3, 5, 5])


@pytest.mark.parametrize(
    "options", [{"start": 0.0}, {"end": -1.0}, {"share": 0.0}, {"share": 1.5}, {"shape": "step"}, {"by": "batch"}]
)
def test_schedule_options_are_checked(options) -> None:
    with pytest.raises(LabError, match=r"softmax\.schedule\.\w+=\S+ is wrong: "):
        check_options(HeatTreatment, path="softmax.schedule", **options)


class Watch(TorchDispatchMode):
    """Remembers the shape of every tensor that is made, in backward passes too."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[torch.Size] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        self.shapes += [t.shape for t in torch.utils._pytree.tree_leaves(made) if isinstance(t, torch.Tensor)]
        return made


def gradients(value: torch.Tensor, *of: torch.Tensor) -> tuple[torch.Tensor, ...]:
    weights = torch.linspace(-3, 3, value.numel(), dtype=value.dtype).view_as(value)
    return torch.autograd.grad((value * weights).sum(), of)


def test_tau_is_moved_in_place_and_a_wrong_one_leaves_it() -> None:
    rule = Fixed(3, 64)
    tau = rule.tau
    rule.set_tau(0.5)
    assert rule.tau is tau and tau.item() == 0.5
    assert rule.default_tau == 8
    with pytest.raises(ValueError, match=r"softmax\.tau must be positive"):
        rule.set_tau(0.0)
    assert rule.temperatures()["tau"].item() == 0.5
    assert rule.state_dict()["tau"].item() == 0.5


def test_fixed_makes_one_number_only() -> None:
    q, k = qk(SHAPES[0])
    with Watch() as watch:
        Fixed(3, 8).inverse_temperature(q, k)
    assert {shape.numel() for shape in watch.shapes} == {1}


@pytest.mark.parametrize("over", ["row", "block"])
@pytest.mark.parametrize("statistic", ["var", "std"])
def test_norm_softmax_builds_no_matrix_of_scores(statistic, over) -> None:
    q, k = (t.requires_grad_() for t in qk((2, 3, 64, 61, 8)))
    rule = norm(3, 8, tau=1e6, statistic=statistic, over=over)
    with Watch() as watch:
        gradients(rule.inverse_temperature(q, k), q, k)
    assert watch.shapes
    assert not [shape for shape in watch.shapes if 64 in shape and 61 in shape]


@pytest.mark.parametrize("over", ["row", "block"])
@pytest.mark.parametrize("statistic", ["var", "std"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", [(1, 2, 6, 9, 3), (1, 2, 3, 4, 5)])
def test_gradient_of_every_spread(shape, masked, statistic, over) -> None:
    q, k = (t.requires_grad_() for t in qk(shape))
    mask = torch.ones(shape[2], shape[3], dtype=torch.bool).tril(1) if masked else None
    rule = norm(2, shape[-1], tau=1e6, statistic=statistic, over=over)
    assert torch.autograd.gradcheck(lambda q, k: rule.inverse_temperature(q, k, mask), (q, k), atol=1e-6)
    if not masked:
        everything = torch.ones(shape[2], shape[3], dtype=torch.bool)
        plain, explicit = (gradients(rule.inverse_temperature(q, k, m), q, k) for m in (None, everything))
        torch.testing.assert_close(plain, explicit, rtol=1e-10, atol=1e-10)


def test_where_tau_decides_nothing_flows_through_the_spread() -> None:
    q, k = (t.requires_grad_() for t in qk(SHAPES[0]))
    spread = (q @ k.transpose(-2, -1)).detach().var(-1, correction=0, keepdim=True)
    tau = spread.median().item()
    beta = norm(3, 8, tau=tau).inverse_temperature(q, k)
    capped = spread > tau
    assert 0 < capped.sum() < capped.numel()
    torch.testing.assert_close(beta[capped], torch.full_like(beta[capped], 1 / tau), rtol=1e-6, atol=0)
    (slope,) = torch.autograd.grad(beta.sum(), q)
    moved = slope.abs().amax(-1, keepdim=True) > 0
    assert torch.equal(moved, ~capped)


@pytest.mark.parametrize("statistic", ["var", "std"])
@pytest.mark.parametrize("over", ["row", "block"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("size", [(20, 20), (3, 4), (4, 1)])
def test_equal_keys_give_the_mean_of_the_values_and_finite_gradients(size, masked, over, statistic) -> None:
    q, k = qk((2, 3, *size, 8), torch.float32)
    q, k = (t[..., :1, :].expand_as(t).clone().requires_grad_() for t in (q, k))
    v = torch.randn(k.shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
    mask = torch.ones(size, dtype=torch.bool) if masked else None
    z = attend(q, k, v, NormSoftmax(3, 8, statistic=statistic, over=over), mask)
    torch.testing.assert_close(z, v.mean(-2, keepdim=True).expand_as(z), rtol=1e-4, atol=1e-4)
    assert all(gradient.isfinite().all() for gradient in gradients(z, q, k, v))


@pytest.mark.parametrize("statistic", ["var", "std"])
def test_a_row_that_sees_one_key_is_left_at_tau(statistic) -> None:
    q, k = (t.requires_grad_() for t in qk(SHAPES[0]))
    causal = torch.ones(20, 20, dtype=torch.bool).tril()
    beta = norm(3, 8, tau=0.5, statistic=statistic).inverse_temperature(q, k, causal)
    assert (beta[:, :, 0] == 2).all()
    assert all(gradient.isfinite().all() for gradient in gradients(beta, q, k))


def test_the_spread_of_half_precision_is_taken_in_float32() -> None:
    half = [t.bfloat16() for t in qk(SHAPES[0])]
    rule = NormSoftmax(3, 8, tau=1e6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        beta = rule.inverse_temperature(*half)
    assert beta.dtype == torch.float32
    torch.testing.assert_close(beta, rule.inverse_temperature(*(t.float() for t in half)))


@pytest.mark.parametrize(
    ("parametrisation", "factor"),
    [
        ("raw", -0.3),
        ("log", math.exp(-0.3)),
        ("tanh", 3 * math.tanh(-0.3)),
        ("sigmoid", 3 / (1 + math.exp(0.3))),
    ],
)
def test_each_parametrisation_is_its_equation(parametrisation, factor) -> None:
    limit = {"limit": 3.0} if parametrisation in ("tanh", "sigmoid") else {}
    rule = LearnableTemperature(1, 4, parametrisation=parametrisation, **limit)
    torch.nn.init.constant_(rule.theta, -0.3)
    assert rule.factor().item() == pytest.approx(factor, rel=1e-6)


def masked_entropy(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    p = scores.masked_fill(~mask, -math.inf).softmax(-1)
    # The entropy of a sure thing is 0, with a finite slope.
    return torch.special.entr(p.masked_fill(~mask, 1.0)).sum(-1, keepdim=True)


@pytest.mark.parametrize("chunk", [1, 300, 2**24])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradient_of_the_entropy_under_a_mask(chunk, dtype, monkeypatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", chunk)
    q, k = (t.requires_grad_() for t in qk(SHAPES[0], dtype))
    causal = torch.ones(20, 20, dtype=torch.bool).tril()
    mine, want = row_entropy(q, k, causal), masked_entropy(q @ k.transpose(-2, -1), causal)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(mine, want, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradients(mine, q, k), gradients(want, q, k), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mask", [(1, 20), (20,), (2, 1, 20, 20)])
def test_masks_of_every_shape_reach_the_entropy(mask, monkeypatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 300)
    q, k = qk(SHAPES[0])
    allowed = torch.rand(mask, generator=torch.Generator().manual_seed(1)) > 0.5
    allowed[..., 0] = True
    want = masked_entropy(q @ k.transpose(-2, -1), allowed)
    torch.testing.assert_close(row_entropy(q, k, allowed), want, rtol=1e-10, atol=1e-10)


def test_the_entropy_of_huge_scores_is_finite_in_value_and_gradient() -> None:
    q, k = (t.mul(1e3).requires_grad_() for t in qk(SHAPES[0], torch.float32))
    for mask in (None, torch.eye(20, dtype=torch.bool)):
        entropy = row_entropy(q, k, mask)
        assert entropy.isfinite().all()
        assert all(gradient.isfinite().all() for gradient in gradients(entropy, q, k))


def test_the_entropy_holds_a_bounded_number_of_scores(monkeypatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 5000)
    q, k = qk((2, 3, 200, 150, 4))
    with Watch() as watch:
        entropy = row_entropy(q, k)
    assert max(shape.numel() for shape in watch.shapes if shape[-1:] == (150,)) <= 5000
    everything = torch.ones(200, 150, dtype=torch.bool)
    torch.testing.assert_close(entropy, masked_entropy(q @ k.transpose(-2, -1), everything))


def test_adaptive_temperature_never_flattens_and_minds_its_gate() -> None:
    entropy = torch.linspace(0, 9, 901, dtype=torch.float64)
    beta = AdaptiveTemperature(1, 4).beta(entropy)
    assert (beta >= 1).all()
    assert (beta[entropy <= 0.5] == 1).all()
    assert (beta > 1).any()
    assert AdaptiveTemperature(1, 4, coefficients=(3.0,)).beta(torch.tensor([0.4, 0.6])).tolist() == [1.0, 3.0]


@pytest.mark.parametrize("shape", ["half_cosine", "linear"])
@pytest.mark.parametrize("quantity", ["inverse_temperature", "temperature"])
@pytest.mark.parametrize(("start", "end", "share"), [(0.25, 4.0, 0.5), (6.0, 0.5, 1.0), (0.25, None, 0.1)])
def test_heat_treatment_goes_from_start_to_end_one_way(shape, quantity, start, end, share) -> None:
    schedule = HeatTreatment(start, end, share, shape, quantity)
    last = 8.0 if end is None else end
    moving = [schedule(share * step / 50, 8.0) for step in range(51)]
    assert moving[0] == pytest.approx(start)
    assert moving[-1] == pytest.approx(last)
    assert sorted(moving, reverse=start > last) == moving
    assert len(set(moving)) == 51
    assert [schedule(p, 8.0) for p in (share + 0.01, 1.0, 1.2)] == pytest.approx([last] * 3)
    assert schedule(-0.1, 8.0) == pytest.approx(start)


def test_heat_treatment_linear_in_the_inverse_temperature() -> None:
    assert HeatTreatment(1.0, 4.0, 0.8, "linear")(0.2, 8.0) == pytest.approx(1 / 0.8125)


@pytest.mark.parametrize("kept", [True, False], ids=["gradients", "which backward"])
def test_compiled_seeds_keep_the_written_out_backward_of_norm_softmax(kept, monkeypatch) -> None:
    if not kept:  # zeros in its place show which of the two, the written one or autograd's own, was taken
        zeros = staticmethod(lambda ctx, slope, *_: tuple(0 * t for t in ctx.saved_tensors[:2]))
        monkeypatch.setattr(RowVariance, "backward", zeros)
    torch.compiler.reset()
    rule = NormSoftmax(4, 4, tau=100.0)
    q, k = torch.randn(2, 3, 2, 4, 24, 4, generator=torch.Generator().manual_seed(0)).unbind()
    of_seeds = torch.func.vmap(rule.inverse_temperature)
    compiled = torch.compile(of_seeds, backend="aot_eager", fullgraph=True)

    def slopes(path):
        inputs = [q.clone().requires_grad_(), k.clone().requires_grad_()]
        return torch.autograd.grad(path(*inputs).square().sum(), inputs)

    for mine, want in zip(slopes(compiled), slopes(of_seeds), strict=True):
        assert want.any() == kept
        torch.testing.assert_close(mine, want)
