"""Batched probes are the logistic regressions that they claim to be."""

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lab.console import LabError
from lab.observation.probes import (
    Targets,
    accuracy,
    code_length,
    dual_predict,
    predict,
    predict_standardised,
    probe_accuracy,
)
from lab.observation.representations import probe_labels, representations

SIZE, WIDTH = 600, 12


def made(seed: int = 0, width: int = WIDTH, size: int = SIZE) -> tuple[Tensor, Targets]:
    """Three representations: one that holds the labels, one of noise, one scaled and shifted."""
    make = torch.Generator().manual_seed(seed)
    x = torch.randn(size, width, generator=make)
    many = (x @ torch.randn(width, 5, generator=make) + torch.randn(size, 5, generator=make)).argmax(1)
    two = (x[:, 0] + 0.3 * torch.randn(size, generator=make) > 0.4).long()
    noise = torch.randn(size, width, generator=make)
    return torch.stack([x, noise, 1000 * x + 77]), Targets.of({"many": many, "two": two})


def test_a_constant_representation_tells_nothing() -> None:
    """As the query of an answer token that is the same in all scenes."""
    x, targets = made()
    constant = torch.randn(1, 1, WIDTH, generator=torch.Generator().manual_seed(1)).expand(1, SIZE, WIDTH)
    for features in (constant, torch.cat([constant, x[:1]]), constant + 1e-7 * x[1:2]):
        accuracies, bits = probe_accuracy(features, targets), code_length(features, targets, (0.1, 0.5))
        assert accuracies.isfinite().all() and bits.isfinite().all()
        majority = max(targets.labels[0, int(0.8 * SIZE) :].bincount()).item() / (SIZE - int(0.8 * SIZE))
        assert accuracies[0, 0] <= majority + 0.05


def test_a_small_representation_is_read_as_well_beside_a_large_one() -> None:
    x, targets = made()
    alone = probe_accuracy(1e-8 * x[:1], targets)
    beside = probe_accuracy(torch.stack([1e-8 * x[0], 100 * x[1]]), targets)
    torch.testing.assert_close(beside[:1], alone)


def sgd_probe(x: Tensor, labels: Tensor, classes: int, cut: int, l2: float = 1.0) -> float:
    """A long full-batch run of torch's LBFGS on the same loss; held-out accuracy."""
    mean, deviation = x[:cut].mean(0), x[:cut].std(0, correction=0)
    x = (x - mean) / deviation
    weight, bias = torch.zeros(classes, x.shape[1], requires_grad=True), torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(x[:cut] @ weight.T + bias, labels[:cut], reduction="sum")
        loss = loss + l2 / 2 * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    return float(((x[cut:] @ weight.T + bias).argmax(1) == labels[cut:]).float().mean())


def test_probes_agree_with_a_long_logistic_regression_each() -> None:
    features, targets = made()
    accuracies = probe_accuracy(features, targets, held_out_share=0.25)
    for row, x in enumerate(features):
        for column, (labels, classes) in enumerate(zip(targets.labels, targets.classes, strict=True)):
            alone = sgd_probe(x, labels, classes, cut=450)
            assert float(accuracies[row, column]) == pytest.approx(alone, abs=0.02)
    # What is scaled and shifted is the same representation.
    assert torch.equal(accuracies[0], accuracies[2])
    assert accuracies[0].min() > 0.75
    majority = targets.majority(slice(0, 450), slice(450, 600))
    assert all(float(noise) < usual + 0.1 for noise, usual in zip(accuracies[1], majority, strict=True))


@pytest.mark.parametrize("width", [120, 300])  # in the primal and in the dual
def test_many_features_are_fitted_to_the_end(width: int) -> None:
    """Where few scenes are told apart surely, the last steps are small, and are many."""
    make = torch.Generator().manual_seed(0)
    x = torch.randn(2, 200, width, generator=make) / torch.arange(1, width + 1).sqrt()
    targets = Targets.of({"many": (x[0] @ torch.randn(width, 6, generator=make)).argmax(1)})
    x = x @ torch.linalg.qr(torch.randn(width, width, generator=make))[0]
    train, rows = slice(0, 150), slice(150, 200)
    whole = predict(x.double(), targets, train, rows, until=(4000, 1e-8)).softmax(-1)
    found = predict(x, targets, train, rows)
    assert float((found.softmax(-1) - whole).abs().max()) < 0.05
    assert torch.equal(probe_accuracy(x, targets), accuracy(found, targets, rows))


def test_the_fit_is_the_minimum_of_its_loss() -> None:
    features, targets = made()
    x = features[:1].double()
    logits = predict(x, targets, slice(0, SIZE), slice(0, SIZE), until=(5000, 1e-12))
    # At the minimum the weights are -X^T (p - y) / l2, with standardised X: their logits are the ones given.
    x = (x - x.mean(1, keepdim=True)) / x.std(1, correction=0, keepdim=True)
    x = torch.cat([x, torch.full_like(x[..., :1], 10.0)], -1)
    p = torch.cat([logits[..., columns].softmax(-1) for columns in targets.slices], -1)
    weights = -x.mT @ (p - targets.one_hot(slice(0, SIZE)))
    torch.testing.assert_close(x @ weights, logits, atol=1e-3, rtol=1e-3)


def test_dual_and_primal_are_the_same_probes() -> None:
    features, targets = made(width=40, size=80)
    features = features.double()
    train, rows = slice(0, 60), slice(60, 80)
    primal = predict(features, targets, train, rows, until=(5000, 1e-10))
    x = features
    mean, deviation = x[:, train].mean(1, keepdim=True), x[:, train].std(1, correction=0, keepdim=True)
    x = (x - mean) / deviation
    products = x[:, train] @ x[:, train].mT + 100.0
    new = x[:, rows] @ x[:, train].mT + 100.0
    y = targets.one_hot(train).double()
    dual = dual_predict(products, new, y, targets, 1.0, iterations=5000, tolerance=1e-10)
    torch.testing.assert_close(primal, dual, atol=1e-4, rtol=1e-4)
    # More features than scenes: the dual is taken by itself.
    wide, targets = made(width=200, size=80)
    assert predict(wide, targets, train, rows).shape == (3, 20, 7)


def predict_over_all(features: Tensor, targets: Targets, start: int, stop: int, iterations: int) -> Tensor:
    """Logits of scenes from ``start`` to ``stop`` of probes of those before; features are scaled over all scenes."""
    x = features.double()
    x = (x - x.mean(1, keepdim=True)) / x.std(1, correction=0, keepdim=True)
    y = targets.one_hot(slice(0, start))
    return predict_standardised(x[:, :start], x[:, start:stop], y, targets, 1.0, iterations, 1e-10)


def test_code_length_is_the_sum_of_blocks_and_short_for_what_is_easy() -> None:
    features, targets = made()
    bits = code_length(features, targets, (0.1, 0.5))
    expected = 60 * math.log2(5)
    for start, stop in ((60, 300), (300, 600)):
        fitted = predict_over_all(features[:1], targets, start, stop, 5000)
        logits = fitted[0, :, targets.slices[0]]
        own = targets.labels[0, start:stop]
        expected -= float(logits.double().log_softmax(-1).gather(1, own[:, None]).sum()) / math.log(2)
    assert float(bits[0, 0]) == pytest.approx(expected, rel=1e-3)
    assert bits[0, 1] < 0.5 * bits[1, 1]
    assert bits[1, 1] > 0.9 * SIZE


def test_code_length_does_not_depend_on_how_alike_its_first_scenes_are() -> None:
    """Scaled by these two alone, their features would be a thousand times as large in all other scenes."""
    features, targets = made()
    alike = features.clone()
    alike[:, 1] = alike[:, 0] + 1e-3 * (alike[:, 1] - alike[:, 0])
    portions = (2 / SIZE, 0.1, 0.5)
    torch.testing.assert_close(
        code_length(alike, targets, portions), code_length(features, targets, portions), rtol=0.05, atol=0
    )


@pytest.mark.parametrize("constant", [0.1, 0.3, 3.7, 1000.0])
def test_a_feature_that_first_varies_in_held_out_scenes_does_no_harm(constant: float) -> None:
    random = torch.Generator().manual_seed(0)
    features = torch.randn(400, 8, generator=random)
    targets = Targets.of({"y": (features[:, 0] > 0).long()})
    beside = torch.full((400, 1), constant)
    beside[300:] += torch.randn(100, 1, generator=random)
    both = torch.stack([torch.cat([features, one], dim=1) for one in (beside, torch.zeros(400, 1))])
    with_it, without = probe_accuracy(both, targets)
    assert with_it == without > 0.9


@pytest.mark.parametrize("scale", [1e-14, 1e-8, 1e8])
def test_the_scale_of_features_does_not_matter(scale: float) -> None:
    features = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
    targets = Targets.of({"y": (features[:, 0] > 0).long()})
    both = torch.stack([features, features * scale])
    one, other = code_length(both, targets, [0.05, 0.5]).flatten()
    assert other == pytest.approx(float(one), rel=1e-3)


def test_representations_keep_what_half_the_precision_would_round_away() -> None:
    z_BHND = 300 + 0.1 * torch.randn(20, 1, 50, 8, generator=torch.Generator().manual_seed(0))
    model = SimpleNamespace(answer_token=0)
    places = representations(SimpleNamespace(layers=[{"z": z_BHND}], model=model), ("z",), ("full",))
    assert torch.equal(places[0, "z", "full"], z_BHND.flatten(2))
    rounded = z_BHND.bfloat16()
    places = representations(SimpleNamespace(layers=[{"z": rounded}], model=model), ("z",), ("mean",))
    torch.testing.assert_close(places[0, "z", "mean"], rounded.float().mean(2))


def test_a_label_of_each_token_is_no_label_to_probe_for() -> None:
    batch = {"x": torch.zeros(2, 3), "y": torch.zeros(2, 3), "latents": {}}
    with pytest.raises(LabError, match="probes need one label per sample"):
        probe_labels(SimpleNamespace(batch=batch), None)


def test_what_says_nothing_is_left_out_and_what_cannot_be_fitted_refused() -> None:
    constant = Targets.of({"same": torch.zeros(10), "two": torch.arange(10) % 2})
    assert constant.names == ("two",)
    assert constant.majority(slice(0, 5), slice(5, 10)) == [pytest.approx(0.4)]
    rare = Targets.of({"rare": torch.arange(8) == 0, "three": torch.tensor([0, 1, 2, 2, 0, 1, 2, 2])})
    assert rare.entropies() == pytest.approx([3 / 8 + 7 / 8 * math.log2(8 / 7), 1.5])
    with pytest.raises(ValueError, match="nothing to probe"):
        Targets.of({"same": torch.ones(4)})
    features, targets = made()
    with pytest.raises(ValueError, match="leave one part empty"):
        probe_accuracy(features, targets, held_out_share=1e-9)
    with pytest.raises(ValueError, match="portions must rise"):
        code_length(features, targets, (0.5, 0.1))


@pytest.mark.parametrize("measure", [probe_accuracy, partial(code_length, portions=(0.1, 0.5))])
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"features_PND": torch.rand(1, SIZE - 1, 4)}, f"features are of {SIZE - 1} scenes, but targets of {SIZE}"),
        ({"features_PND": torch.full((1, SIZE, 4), math.nan)}, "features hold NaN or infinity"),
        ({"features_PND": torch.full((1, SIZE, 4), math.inf)}, "features hold NaN or infinity"),
        ({"features_PND": torch.rand(SIZE, 4)}, rf"features are a tensor .* got \[{SIZE}, 4\] torch.float32"),
        ({"features_PND": torch.ones(1, SIZE, 4).long()}, "features are a tensor of real numbers, .* torch.int64"),
        ({"features_PND": torch.rand(0, SIZE, 4)}, "with one or more of each, got"),
        ({"features_PND": torch.rand(1, SIZE, 0)}, "with one or more of each, got"),
        ({"features_PND": torch.rand(1, SIZE, 4).numpy()}, "features are a tensor .* got ndarray"),
        ({"targets": torch.ones(SIZE).long()}, rf"as Targets.of\(.*\), got \[{SIZE}\] torch.int64"),
        ({"l2": 0.0}, "l2 is a number above 0, got 0"),
        ({"l2": math.nan}, "l2 is a number above 0, got nan"),
    ],
)
def test_what_no_probe_can_be_fitted_to_is_refused(
    measure: Callable[..., Tensor], wrong: dict[str, Any], told: str
) -> None:
    features, targets = made()
    with pytest.raises(ValueError, match=told):
        measure(**{"features_PND": features, "targets": targets, **wrong})


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({"a": torch.tensor([0.0, 1.0, math.nan])}, "label a holds NaN"),
        ({"a": torch.arange(3), "b": torch.arange(4)}, "all labels are of the same scenes, got {'a': 3, 'b': 4}"),
        ({"a": torch.zeros(2, 2)}, r"labels are tensors \[scenes\], and a is \[2, 2\] torch.float32"),
        ({"a": [0, 1]}, r"labels are tensors \[scenes\], and a is list"),
        (torch.arange(3), "labels are a dict, name -> tensor"),
    ],
)
def test_labels_that_are_none_of_each_scene_are_refused(labels: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Targets.of(labels)


@pytest.mark.parametrize("features", [16, 5000])
def test_code_length_of_what_is_easy_is_that_of_the_best_probe(features: int) -> None:
    """What an accuracy needs is not enough: bits of easy labels would be off by half, and of many features, too."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 2
    x = torch.randn(400, features, generator=generator) + 100 * torch.randn(features, generator=generator)
    x[:, :8] += 2 * y[:, None]
    targets, portions = Targets.of({"y": y}), (0.1, 0.5)
    expected = 40.0
    for start, stop in ((40, 200), (200, 400)):
        logits = predict_over_all(x[None], targets, start, stop, 20_000)[0]
        expected -= float(logits.log_softmax(-1).gather(1, y[start:stop, None]).sum()) / math.log(2)
    assert float(code_length(x[None], targets, portions)) == pytest.approx(expected, rel=2e-3)
