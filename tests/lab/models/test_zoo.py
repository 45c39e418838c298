"""The zoo: every softmax that has a config, and each of its forms, composes and trains every model."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import torch
from lightning_utilities import apply_to_collection
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from lab.config.check import check
from lab.config.compose import CONFIGS, compose_config
from lab.console import LabError
from lab.datasets.max_retrieval import MaxRetrievalData
from lab.datasets.reasoning import ReasoningData, reasoning_table
from lab.models.compact_vit import CompactViT
from lab.models.composed_softmax import softmax_factory
from lab.models.observable import Observable
from lab.models.reasoner import Reasoner
from lab.models.set_attention import SetAttention
from lab.models.softmaxes import SoftmaxFactory
from lab.observation.recorder import Recorder
from lab.runs.outcome import Ending
from lab.training.build import build_model, build_model_and_data
from lab.training.seeds.stack import Stack

# A config alone is a softmax as it is shipped; what its options make of it is another one.
SHIPPED = [path.stem for path in sorted((CONFIGS / "softmax").glob("*.yaml"))]
FORMS = [
    "softmax_plus_one softmax.normaliser.bias=learned",
    "softmax_plus_one softmax.normaliser.bias=length",
    "sigmoid softmax.normaliser.bias=learned",
    "sigmoid softmax.normaliser.bias=fixed",
    "polynomial softmax.normaliser.form=normalised",
    "linear softmax.normaliser.normalised=false",
    # A rule with a normaliser; all that are shipped with a rule of their own have softmax.
    "norm_softmax softmax/normaliser=sigmoid",
    "learnable_temperature softmax/normaliser=plus_one",
    "adaptive_temperature softmax/normaliser=hard softmax.when=always",
]
every = pytest.mark.parametrize("name", [*SHIPPED, *FORMS])


@cache
def config_of(name: str) -> DictConfig:
    """The softmax of a config and its options, as the experiment of max retrieval composes it."""
    softmax, *options = name.split()
    return compose_config(["experiment=max_retrieval", f"softmax={softmax}", *options]).softmax


def factory(name: str) -> SoftmaxFactory:
    return softmax_factory(config_of(name))


def reasoning(softmax: SoftmaxFactory) -> tuple[Observable, Any, Tensor]:
    x, y, _ = reasoning_table(4)
    return Reasoner(tokens=5, num_classes=4, width=8, heads=2, hidden=8, softmax=softmax), x, y


def max_retrieval(softmax: SoftmaxFactory) -> tuple[Observable, Any, Tensor]:
    batch = MaxRetrievalData().draw(items=9, sets=32, generator=torch.Generator().manual_seed(0))
    return SetAttention(width=8, softmax=softmax), batch["x"], batch["y"]


def main_task_small(softmax: SoftmaxFactory) -> tuple[Observable, Any, Tensor]:
    options: Any = OmegaConf.to_container(OmegaConf.load(CONFIGS / "model" / "tiny_vit.yaml"))
    own = {key: value for key, value in options.items() if key not in ("_target_", "defaults")}
    model = CompactViT(**{**own, "heads": 2, "head_dim": 4, "image_size": 28}, softmax=softmax)
    return model, torch.randn(8, 3, 28, 28), torch.arange(8)


def compact_vit(softmax: SoftmaxFactory) -> tuple[Observable, Any, Tensor]:
    model = CompactViT(image_size=16, depth=2, heads=2, head_dim=4, init="fan_in", softmax=softmax)
    return model, torch.randn(8, 3, 16, 16), torch.arange(8)


@pytest.mark.parametrize("task", [reasoning, max_retrieval, main_task_small, compact_vit])
@every
def test_every_softmax_trains_every_model(name: str, task: Callable[..., tuple[Observable, Any, Tensor]]) -> None:
    torch.manual_seed(0)
    model, x, y = task(factory(name))
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(20):
        for rule in model.rules():
            rule.set_tau(rule.default_tau * (0.5 + step / 40))  # as a schedule moves it
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        assert loss.isfinite()
        loss.backward()
        optimizer.step()
    moved = {key for key, value in model.named_parameters() if not torch.equal(value, before[key])}
    queries = {key for key in before if key.endswith(("qkv.weight", "query.weight"))}
    assert queries and moved >= queries | model.softmax_parameters()
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model))).double().eval()
    inputs = apply_to_collection(x, Tensor, lambda own: own.double() if own.is_floating_point() else own)
    explicit = Recorder(twin, what=("weights",)).run(inputs)
    torch.testing.assert_close(twin(inputs), explicit, rtol=1e-6, atol=1e-8)


def model_class(name: str) -> str:
    """The class of a model's config, or of the config that it changes."""
    own = OmegaConf.load(CONFIGS / "model" / f"{name}.yaml")
    return own._target_ if "_target_" in own else model_class(own.defaults[0])


def test_a_model_that_no_experiment_names_learns_from_data_of_its_kind() -> None:
    """All others take a step of theirs on the fake GPU."""
    texts = [path.read_text() for path in (CONFIGS / "experiment").glob("*.yaml")]
    tried = {model_class(name) for text in texts for name in re.findall(r"override /model: (\w+)", text)}
    sets, numbers = MaxRetrievalData(), ReasoningData(numbers=4)
    kinds: list[tuple[dict[str, int], Any]] = [
        ({"image_size": 28, "num_classes": 10}, torch.randn(2, 3, 28, 28)),
        (numbers.model_arguments(), numbers.batch("train")["x"]),
        (sets.model_arguments(), sets.draw(items=9, sets=2, generator=None)["x"]),
    ]
    for path in sorted((CONFIGS / "model").glob("*.yaml")):
        if model_class(path.stem) in tried:
            continue
        config, learnt = compose_config([f"model={path.stem}"]), False
        for facts, x in kinds:
            with suppress(LabError):  # of another kind
                model = build_model(config.model, config.softmax, facts)
                logits = model(x)
                assert logits.shape == (len(logits), facts["num_classes"]) and logits.isfinite().all()
                logits.sum().backward()
                learnt = any(one.grad is not None for one in model.parameters())
        assert learnt, f"model={path.stem} takes no data of {__file__}: let a config in configs/experiment name it"
        tried.add(model_class(path.stem))


@every
def test_seeds_train_side_by_side(name: str) -> None:
    models = []
    for seed in range(3):
        torch.manual_seed(seed)
        model, x, y = reasoning(factory(name))
        models.append(model.double())
    alone = [torch.nn.functional.cross_entropy(model(x), y) for model in models]
    torch.stack(alone).sum().backward()
    slopes = [[p.grad for p in model.parameters()] for model in models]
    stack = Stack(models)
    logits = stack(torch.stack([x] * 3))
    losses = torch.stack([torch.nn.functional.cross_entropy(own, y) for own in logits])
    torch.testing.assert_close(losses, torch.stack(alone), rtol=1e-8, atol=1e-10)
    for row, *own in zip(
        torch.autograd.grad(losses.sum(), list(stack.rows), materialize_grads=True), *slopes, strict=True
    ):
        want = torch.stack([torch.zeros_like(row[0]) if slope is None else slope for slope in own])
        torch.testing.assert_close(row, want, rtol=1e-7, atol=1e-10)


def experiments() -> list[str]:
    """Experiments as they are composed: those of a model with attention, which are all."""
    return [path.stem for path in sorted((CONFIGS / "experiment").glob("*.yaml"))]


@pytest.mark.parametrize("experiment", experiments())
def test_every_softmax_composes_with_every_experiment(experiment: str) -> None:
    # Hydra puts the same group into each: composed with one, checked with the others in its place.
    config = compose_config(
        [f"experiment={experiment}", f"softmax={SHIPPED[len(experiment) % len(SHIPPED)]}", "paths.run=here"]
    )
    for name in SHIPPED:
        config.softmax = config_of(name)
        check(config)


def test_linear_attention_takes_no_temperature() -> None:
    facts = {"tokens": 5, "context": 5, "num_classes": 4}
    config = compose_config(["experiment=reasoning", "softmax=norm_softmax", "softmax/normaliser=linear"])
    with pytest.raises(LabError) as told, Ending().told():
        build_model(config.model, config.softmax, facts)
    assert str(told.value) == (
        "softmax: NormSoftmax does not go with the normaliser Linear, whose weights are not computed from scores "
        "q k^T that the rule knows: softmax=linear has the plain rule with a tau of 1"
    )
    heated = compose_config(["experiment=reasoning", "softmax=linear", "softmax/schedule=heat_treatment"])
    with pytest.raises(LabError, match=r"Linear has no temperature to heat: leave softmax/schedule out"):
        build_model_and_data(heated)
