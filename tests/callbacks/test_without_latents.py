"""Data of one's own may say little of its scenes: callbacks show what there is, and tell what there is not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lab.callbacks.diagnostics.attention_mass import AttentionMass
from lab.callbacks.diagnostics.sample_scenes import SampleScenes, titles_of
from lab.models.compact_vit import CompactViT
from lab.observation.observe import observe


def test_titles_are_what_the_data_tells() -> None:
    batch = {"y": torch.tensor([1, 0]), "latents": {"target_location": torch.tensor([0, 1])}}
    whole = SimpleNamespace(class_names=("coat", "bag"), locations=("top", "bottom"))
    assert titles_of(whole, batch) == ["bag\n(top)", "coat\n(bottom)"]
    assert titles_of(whole, {**batch, "latents": {}}) == ["bag", "coat"]
    assert titles_of(SimpleNamespace(class_names=("coat", "bag")), batch) == ["bag", "coat"]
    assert titles_of(SimpleNamespace(), {**batch, "latents": {}}) == ["1", "0"]


@pytest.mark.pictures
def test_scenes_without_a_target_location_are_drawn(tmp_path: Path, vision_data) -> None:
    plain = SimpleNamespace(
        draw_train=vision_data.draw_train,
        composed=lambda draws, normalise: {**vision_data.composed(draws, normalise), "latents": {}},
    )
    trainer = SimpleNamespace(datamodule=plain, is_global_zero=True, loggers=[], global_step=0)
    SampleScenes(str(tmp_path)).on_fit_start(trainer, None)
    assert (tmp_path / "scenes.png").stat().st_size > 10_000


def test_mass_says_once_that_there_are_no_regions(
    tmp_path: Path, vision_data, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    model = CompactViT(**vision_data.model_arguments(), patch_size=14, depth=1, heads=1, head_dim=8)
    mass = AttentionMass(str(tmp_path), scenes=10)
    device = torch.device("cpu")
    observe(model, vision_data, [mass], device)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(vision_data, "regions", lambda batch: {})
    for _ in range(2):
        (found,) = observe(model, vision_data, [mass], device)
    assert {row["region"] for row in found.rows} == {"answer", "sink"}
    assert capsys.readouterr().err.count("does not say where the parts of its scenes stand") == 1
