"""Gradient norms of a checkpoint are those that training would log next, and looking changes nothing."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from conftest import SMALL, summary_of, train_in
from lightning.fabric.plugins.precision import MixedPrecision
from torch import nn

import lab.observation.gradients
from lab.callbacks.diagnostics.gradient_norms import GradientNorms, gradient_norms
from lab.config.check import check_arguments
from lab.console import LabError
from lab.datasets.vision import VisionData
from lab.models.compact_vit import CompactViT
from lab.observation.gradients import TrainingState, at_next_steps, next_steps
from lab.train import run as train_with
from lab.training.inspection import inspect
from lab.training.module import TwoStepModule
from lab.training.optim import OptimConfig

VISION = (*SMALL, "trainer.max_epochs=2", "callbacks=[gradient_norms,eureka]", "model.drop_path_rate=0.3")
REASONING = ("experiment=reasoning", "data.numbers=4", "trainer.max_epochs=8")
SETS = (
    "experiment=max_retrieval",
    "data.epoch_steps=4",
    "data.batch_size=8",
    "data.validation_size=8",
    "trainer.max_epochs=2",
)


def train(folder: Path, *overrides: str) -> Path:
    """Trains with a checkpoint and gradient norms at every step; the run folder."""
    every = ["callbacks.gradient_norms.every_n_steps=1", "checkpoints.every_n_steps=1", "checkpoints.keep=99"]
    train_with([*overrides, *every, f"paths.runs={folder}", "threads=1", "logger=csv_only"])
    (found,) = (path.parent for path in folder.rglob("config.yaml"))
    return found


def back_to(run: Path, step: int) -> None:
    """Takes away the checkpoints after a step."""
    for path in (run / "checkpoints").glob("last-*.ckpt"):
        if int(path.stem.split("-")[1]) > step:
            path.unlink()


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.pictures
@pytest.mark.parametrize(
    ("setting", "step", "per_step", "near"),
    [
        (VISION, 5, 16, 1e-5),
        (VISION, 4, 16, 1e-5),
        ((*VISION, "trainer.accumulate_grad_batches=2"), 3, 32, 1e-5),
        ((*VISION, "trainer.precision=bf16-mixed"), 5, 16, 1e-5),
        ((*VISION, "model=vit_small", "model.patch_size=4", "softmax=norm_softmax"), 6, 16, 1e-5),
        (REASONING, 6, 76, 1e-5),
        # The checkpoint's float64 weights are rounded on the way.
        ((*REASONING, "trainer.precision=64-true"), 6, 76, 1e-4),
        ((*SETS, "softmax=learnable_temperature"), 7, 8, 1e-5),
    ],
    ids=["vit", "new_epoch", "accumulated", "bf16", "vit_small", "reasoner", "float64", "sets"],
)
def test_a_checkpoint_shows_what_training_logs_next(
    tmp_path: Path, setting: tuple[str, ...], step: int, per_step: int, near: float
) -> None:
    run = train(tmp_path / "runs", *setting)
    back_to(run, step)
    before = content(run)
    scenes = f"callbacks.gradient_norms.scenes={per_step + 1}"
    out = inspect(run, ["callbacks=[gradient_norms]", scenes], out=tmp_path / "look")
    assert content(run) == before
    table = pd.read_csv(out / "diagnostics" / "gradient_norms.csv")
    logged = pd.read_csv(run / "metrics.csv").set_index("step").filter(regex="^gradient/").dropna().loc[step]
    layers = len(logged) // 3
    assert sorted(zip(table["ahead"], table["layer"], strict=True)) == [(a, i) for a in (0, 1) for i in range(layers)]
    assert table["step"].unique().tolist() == [step]
    for row in table[table["ahead"] == 0].to_dict("records"):
        for name in "qkv":
            assert row[name] == pytest.approx(logged[f"gradient/{name}/layer_{row['layer']}"], rel=near)
    assert (out / "gradient_norms.json").exists()
    assert (out / "pictures" / "gradient_norms" / "layers.png").stat().st_size > 1000


def test_it_looks_beside_diagnostics_and_under_another_softmax(tmp_path: Path) -> None:
    run = train(tmp_path / "runs", *REASONING)
    both = ["callbacks=[gradient_norms,attention_entropy]"]
    inspect(run, both, out=tmp_path / "own")
    assert (tmp_path / "own" / "diagnostics" / "attention_entropy.csv").exists()
    inspect(run, both, out=tmp_path / "other", softmax="norm_softmax")
    own, other = (pd.read_csv(tmp_path / n / "diagnostics" / "gradient_norms.csv") for n in ("own", "other"))
    assert (own["q"] != other["q"]).all()
    with pytest.raises(LabError, match="holds a look of gradient_norms already"):
        inspect(run, both, out=tmp_path / "own")


def test_a_model_without_attention_is_refused(tmp_path: Path) -> None:
    small = [override for override in SMALL if not override.startswith("model.")]
    run = train(tmp_path, *small, "model=resnet9", "trainer.max_epochs=1", "callbacks=[gradient_norms,eureka]")
    with pytest.raises(LabError, match="ResNet9 has no attention, so gradient_norms cannot look into it"):
        inspect(run, ["callbacks=[gradient_norms]"], out=tmp_path / "look")
    assert not (tmp_path / "look").exists()


@pytest.mark.parametrize("options", [{"every_n_steps": 0}, {"scenes": 0}])
def test_numbers_out_of_range_are_refused(options: dict[str, int]) -> None:
    (name,) = options
    with pytest.raises(LabError, match=f"gradient_norms.{name}=0 is wrong: it must be greater than 0"):
        check_arguments(GradientNorms, options, "callbacks.gradient_norms")


def small_trained(data: VisionData, precision: str = "32-true") -> TrainingState:
    torch.manual_seed(0)
    model = CompactViT(**data.model_arguments(), patch_size=14, depth=2, heads=2, head_dim=8)
    module = TwoStepModule(model, OptimConfig(lr=1e-3), data.model_arguments()["num_classes"])
    return TrainingState(module, data, 3, precision)


def test_the_loss_of_16_bit_is_scaled_and_its_gradient_scaled_back(
    vision_data: VisionData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU this is what 16-mixed is; Lightning has no such precision on a CPU, so that it is put in by hand."""
    plain = at_next_steps(small_trained(vision_data), 2, gradient_norms)
    in_half = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    monkeypatch.setattr(lab.observation.gradients, "_precision", lambda *_: in_half)
    scaled = at_next_steps(small_trained(vision_data, "16-mixed"), 2, gradient_norms)
    for mine, theirs in zip(scaled, plain, strict=True):
        assert mine != theirs
        assert mine == pytest.approx(theirs, rel=0.05)


@pytest.mark.parametrize(("limit", "batches"), [(None, 8), (1.0, 8), (0.5, 4), (3, 3), (100, 8)])
def test_the_next_step_knows_how_long_an_epoch_is(vision_data: VisionData, limit: float | None, batches: int) -> None:
    assert len(vision_data.train_dataloader()) == 8
    with next_steps(replace(small_trained(vision_data), limit=limit)) as copied:
        assert copied.steps_an_epoch == batches


def test_every_step_has_a_gradient_of_its_own(vision_data: VisionData) -> None:
    trained = small_trained(vision_data)
    first, second = at_next_steps(trained, 2, gradient_norms)
    assert [second] == at_next_steps(replace(trained, step=4), 1, gradient_norms)
    assert first != second


def test_the_model_and_random_numbers_are_left_alone(vision_data: VisionData) -> None:
    trained = small_trained(vision_data, "64-true")
    trained.module.eval()
    weights = {name: value.clone() for name, value in trained.module.state_dict().items()}
    seen: list[nn.Module] = []
    random = torch.get_rng_state()
    at_next_steps(trained, 1, seen.append)
    assert torch.equal(torch.get_rng_state(), random)
    assert seen[0] is not trained.module.model
    assert seen[0].attention_layers()[0].projection_gradients()["q"].dtype == torch.float64  # type: ignore[operator]
    assert not any(module.training for module in trained.module.modules())
    assert all(parameter.grad is None for parameter in trained.module.parameters())
    state = trained.module.state_dict()
    assert all(torch.equal(state[name], value) for name, value in weights.items())


def test_a_picture_that_fails_is_told_and_ends_no_run(tmp_path: Path, monkeypatch, capsys) -> None:
    def fails(rows: object, moment: float | None) -> None:
        raise ValueError("no room for a legend")

    monkeypatch.setattr("lab.callbacks.diagnostics.gradient_norms.gradients_figure", fails)
    folder = train_in(tmp_path, "experiment=reasoning", "data.numbers=4", "trainer.max_epochs=1", "logger=csv_only")
    assert summary_of(folder)["status"] == "finished"
    assert "callbacks.gradient_norms draws no picture over training: ValueError: no room" in capsys.readouterr().err
