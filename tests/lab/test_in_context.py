"""In-context learning trains offline under any softmax, ends the same when resumed, and shows itself to diagnostics."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_resumed_alike, made_once, problem_with, set_status, summary_of, train_in, write_alphabets
from torch import Tensor

from lab.attention.normalisers.plus_one import PlusOne
from lab.attention.rules.norm import NormSoftmax
from lab.config.compose import CONFIGS
from lab.console import LabError
from lab.models import in_context
from lab.models.composed_softmax import softmax_config, softmax_factory
from lab.models.in_context import InContextTransformer, sinusoids
from lab.models.softmaxes import SoftmaxFactory
from lab.observation.recorder import Recorder
from lab.train import run
from lab.training.inspection import inspect

SMALL = dict(pairs=4, num_classes=20, channels=(8, 16), blocks=(1, 1), stem=8, layers=2, heads=4)


@pytest.fixture
def tiny(tmp_path_factory) -> tuple[str, ...]:
    """The small experiment in tiny, on made-up characters."""
    folder = made_once(tmp_path_factory, "alphabets", lambda to: write_alphabets(to, {"A": 7, "B": 5}, drawings=6))
    return (
        "experiment=in_context_small", f"data.alphabets.root={folder}", "data.image_size=12", "data.symmetries=4",
        "data.common=3", "data.holdout=4", "data.pairs=4", "data.shots=2", "data.batch_size=4", "data.epoch_steps=10",
        "data.validation_size=30", "data.in_weights_size=9", "data.validation_batch_size=16", "model.channels=[8,16]",
        "model.blocks=[1,1]", "model.stem=8", "trainer.max_epochs=2", "logger=csv_only",
        "callbacks.gradient_norms.every_n_steps=10", "callbacks.throughput.every_n_steps=10",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("softmax", "options"),
    [
        ("norm_softmax", ()),
        ("softmax_plus_one", ("model.block=bottleneck", "model.init=gpt2", "data.zipf_exponent=1.0")),
    ],
)
def test_twenty_steps_under_a_softmax(softmax: str, options: tuple, tiny: tuple, tmp_path: Path) -> None:
    folder = train_in(tmp_path / "runs", f"softmax={softmax}", *tiny, *options)
    summary = summary_of(folder)
    assert (summary["status"], summary["steps"], summary["samples"]) == ("finished", 20, 80)
    assert (summary["eureka"]["metric"], summary["eureka"]["threshold"]) == ("val/accuracy_closed", 0.7)
    assert summary["eureka"]["prior_accuracy"] == pytest.approx(0.5, abs=0.25)
    metrics = summary["metrics"]
    for name in ("accuracy", "accuracy_closed", "accuracy_class_1", "accuracy_in_weights_rare"):
        assert 0 <= metrics[f"val/{name}"] <= 1, name
    # Whoever is right of all labels is right of 0 and 1.
    assert metrics["val/accuracy_closed"] >= metrics["val/accuracy"]
    assert metrics["train/learning_rate"] == pytest.approx(9e-4 * 20 / 4000, rel=0.06)


def test_a_resumed_run_ends_with_the_same_weights(tiny: tuple, tmp_path: Path) -> None:
    options = (*tiny, "checkpoints.every_n_steps=7", "optim.warmup_steps=9")
    assert_resumed_alike(tmp_path, *options)


def test_seeds_train_side_by_side(tiny: tuple, tmp_path: Path) -> None:
    told = run([*tiny, "seeds=2", f"paths.runs={tmp_path / 'runs'}", "threads=1"])
    alone = train_in(tmp_path / "alone", "seed=1", *tiny)
    for name in ("val/loss", "train/loss", "val/accuracy_closed"):
        assert told[1].metrics[name] == pytest.approx(summary_of(alone)["metrics"][name], rel=1e-3), name


def test_seeds_side_by_side_go_on_where_they_were(tiny: tuple, tmp_path: Path) -> None:
    options = [*tiny, "seeds=2", f"paths.runs={tmp_path}", "threads=1", "checkpoints.every_n_steps=7"]
    whole = [one.metrics["val/loss"] for one in run(options)]
    for folder in {path.parent for path in tmp_path.rglob("config.yaml")}:
        (folder / "checkpoints" / "last-000000020.ckpt").unlink()
        set_status(folder, "running")
    assert [one.metrics["val/loss"] for one in run(options)] == pytest.approx(whole)


def test_diagnostics_look_at_few_shot_sequences_alone(tiny: tuple, tmp_path: Path) -> None:
    folder = train_in(tmp_path / "runs", *tiny, "trainer.max_steps=2", "trainer.max_epochs=1")
    looks = ["callbacks=[attention_mass,attention_entropy,linear_probes]"]
    looks += [f"callbacks.{name}.scenes=1000" for name in ("attention_mass", "attention_entropy", "linear_probes")]
    out = inspect(folder, looks, softmax="norm_softmax")
    with next(out.rglob("attention_mass.csv")).open() as file:
        tokens = {row["region"]: float(row["tokens"]) for row in csv.DictReader(file)}
    # Two images and labels of the query's class among the eight before it: in all 30 sequences, or this is no 2.
    assert tokens == {
        "support_images": 2,
        "support_labels": 2,
        "other_images": 2,
        "other_labels": 2,
        "answer": 1,
        "sink": 1,
    }


def test_it_learns_under_each_softmax() -> None:
    names = sorted(path.stem for path in (CONFIGS / "softmax").glob("*.yaml"))
    assert len(names) > 10
    x, y = (torch.rand(3, 5, 1, 12, 12), torch.randint(20, (3, 4))), torch.randint(20, (3,))
    for name in names:
        softmax = softmax_factory(softmax_config(name))
        model = InContextTransformer(**SMALL, softmax=softmax)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        gradients = [model.encoder[0].weight.grad, model.label.weight.grad]
        gradients += model.attention_layers()[0].projection_gradients().values()
        # Of a hard choice queries and keys have no gradient.
        assert all(gradient.isfinite().all() for gradient in gradients), name
        assert sum(bool(gradient.any()) for gradient in gradients) >= 3, name


@pytest.mark.parametrize("experiment", ["in_context", "in_context_small"])
def test_it_composes(experiment: str) -> None:
    assert problem_with([f"experiment={experiment}", "softmax=norm_softmax_heat_treatment", "trainer=gpu"]) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["model=compact_vit"], "CompactViT does not fit this data, which gives pairs"),
        (["data.rare=200"], "there are 12: lower them"),
        (["model.heads=3"], "model.heads=3 does not divide the width, the last of model.channels, 16"),
        (["model.blocks=[1]"], r"model.channels=\[8, 16\] and model.blocks=\[1\] must have the same length"),
        (["model.block=bottleneck", "model.channels=[6,16]"], "4 must divide 6"),
        (["optim.warmup_steps=0"], "optim.schedule=inverse_sqrt goes by steps: give \\+\\+optim.warmup_steps"),
        (["optim.schedule=cosine"], "optim.schedule=cosine goes by epochs: give optim.warmup_epochs"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(options: list, said: str, tiny: tuple, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=said):
        # Another model has other options.
        given = [one for one in tiny if not (one.startswith("model.") and options[0].startswith("model="))]
        train_in(tmp_path / "runs", *given, *options)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("softmax", [None, NormSoftmax, SoftmaxFactory(normaliser=PlusOne)])
def test_the_last_token_alone_is_what_all_tokens_say(softmax) -> None:
    """Unwatched, the last layer works out one query; a recorder has it work out all, under the causal mask."""
    model = InContextTransformer(**SMALL, softmax=softmax).eval()
    images, labels = torch.rand(3, 5, 1, 12, 12), torch.randint(20, (3, 4))
    with torch.no_grad():
        quick = model((images, labels))
        recorder = Recorder(model, what=("weights",))
        with recorder.on():
            torch.testing.assert_close(model((images, labels)), quick)
        for layer in recorder.layers:
            weights = recorder[layer]["weights"]
            assert weights.shape == (3, 4, 9, 9) and not weights.triu(1).any() and (weights.sum(-1) > 0).all()


def test_what_comes_last_is_the_query() -> None:
    model = InContextTransformer(**SMALL).eval()
    images, labels = torch.rand(1, 5, 1, 12, 12), torch.randint(20, (1, 4))
    before = model((images, labels))
    other = images.clone()
    other[:, 4] = torch.rand(1, 12, 12)
    assert before.shape == (1, 20) and not torch.allclose(model((other, labels)), before)
    assert not torch.allclose(model((images, (labels + 1) % 20)), before)


def test_the_published_model_is_of_the_published_size() -> None:
    model = InContextTransformer()
    block = 4 * 64 * 64 + 2 * 4 * 64 * 64 + 4 * 64 + (4 + 1) * 64 + 2 * 2 * 64
    assert sum(p.numel() for p in model.blocks.parameters()) == 12 * block
    assert [layer.num_heads for layer in model.attention_layers()] == [8] * 12 and model.rules()[0].tau == 8**0.5
    convolutions = [
        one for one in model.encoder.modules() if isinstance(one, torch.nn.Conv2d) and one.kernel_size != (1, 1)
    ]
    assert len(convolutions) == 17  # and the head: a ResNet-18
    assert [one.out_channels for one in convolutions] == [64, *[16] * 4, *[32] * 8, *[64] * 4]
    assert model.head.out_features == model.label.num_embeddings == 1623 and model.position.shape == (17, 64)


def test_positions_turn_at_their_paces() -> None:
    position = sinusoids(40, 8, 30)
    place = torch.arange(40.0)
    torch.testing.assert_close(position[:, 0], place.sin())
    torch.testing.assert_close(position[:, 7], (place / 30 ** (6 / 8)).cos())


def test_images_and_labels_alternate_at_their_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen, last = InContextTransformer(**SMALL).eval(), [], in_context.last_token

    def noted(blocks: Any, x: Tensor) -> Tensor:
        seen.append(x)
        return last(blocks, x)

    monkeypatch.setattr(in_context, "last_token", noted)
    images, labels = torch.rand(3, 5, 1, 12, 12), torch.randint(20, (3, 4))
    with torch.no_grad():
        model((images, labels))
        own = model.encoder(images.flatten(0, 1)).unflatten(0, (3, 5))
        states = seen[0] - model.position
        torch.testing.assert_close(states[:, 0::2], own)
        torch.testing.assert_close(states[:, 1::2], model.label(labels))
