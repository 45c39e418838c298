"""Data of one's own may say little of its scenes: callbacks show what there is, and tell what there is not."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from lab.callbacks.diagnostics.attention_entropy import AttentionEntropy
from lab.callbacks.diagnostics.attention_mass import AttentionMass
from lab.callbacks.diagnostics.sample_scenes import SampleScenes, scenes_figure, titles_of
from lab.datasets.loading import Batch, DataModule, data_of
from lab.models.compact_vit import CompactViT
from lab.observation.observe import Chunk, observe


class Plain(DataModule):
    """Data that says nothing of its samples."""

    def model_arguments(self) -> dict[str, int]:
        return {"num_classes": 2}

    def draw_train(self, epoch: int, step: int) -> Batch:
        return {"x": torch.zeros(2, 5), "y": torch.tensor([1, 0]), "latents": {}}

    def draw_validation(self, index: int) -> Batch:
        return self.draw_train(0, index)


def data_with(**facts: object) -> DataModule:
    data = Plain()
    vars(data).update(facts)
    return data


def test_data_says_nothing_unless_its_class_does(tmp_path: Path) -> None:
    data, batch = Plain(), Plain().draw_train(0, 0)
    assert (data.locations, data.class_names, data.prior_accuracy(), data.regions(batch)) == ((), (), None, {})
    assert data.on_after_batch_transfer(batch, 0) is batch and data.composed(batch) is None
    trainer = SimpleNamespace(datamodule=data, is_global_zero=True, loggers=[], global_step=0)
    assert data_of(trainer) is data
    SampleScenes(str(tmp_path)).on_fit_start(trainer, None)
    assert not (tmp_path / "scenes.png").exists()


def test_titles_are_what_the_data_tells() -> None:
    batch = Plain().draw_train(0, 0)
    told: Batch = {**batch, "latents": {"target_location": torch.tensor([0, 1])}}
    whole = data_with(class_names=("coat", "bag"), locations=("top", "bottom"))
    assert titles_of(whole, told) == ["bag\n(top)", "coat\n(bottom)"]
    assert titles_of(whole, batch) == ["bag", "coat"]
    assert titles_of(data_with(class_names=("coat", "bag")), told) == ["bag", "coat"]
    assert titles_of(data_with(), batch) == ["1", "0"]


@pytest.mark.pictures
def test_scenes_without_a_target_location_are_drawn(tmp_path: Path, vision_data) -> None:
    plain = data_with(
        draw_train=vision_data.draw_train,
        composed=lambda draws, normalise: {**vision_data.composed(draws, normalise), "latents": {}},
    )
    trainer = SimpleNamespace(datamodule=plain, is_global_zero=True, loggers=[], global_step=0)
    SampleScenes(str(tmp_path)).on_fit_start(trainer, None)
    assert (tmp_path / "scenes.png").stat().st_size > 10_000


def test_the_answers_own_query_is_told_beside_the_mean_over_queries(tmp_path: Path, vision_data) -> None:
    """In the last layer, no other query reaches the answer, wherever the others look."""
    model = CompactViT(**vision_data.model_arguments(), patch_size=14, depth=2, heads=2, head_dim=8)
    weights: list[list[torch.Tensor]] = []

    class Mass(AttentionMass):
        def see(self, chunk: Chunk) -> dict[str, dict[int, torch.Tensor]]:
            weights.append([layer["weights"].double() for layer in chunk.layers])
            return super().see(chunk)

    looks = [Mass(str(tmp_path), scenes=10), AttentionEntropy(str(tmp_path), scenes=10)]
    mass, entropy = (pd.DataFrame(found.rows) for found in observe(model, vision_data, looks, torch.device("cpu")))
    for layer in (0, 1):
        weights_BHNM = torch.cat([chunk[layer] for chunk in weights])
        of_cls_BHM = weights_BHNM[:, :, 0]
        for region, wanted in (("answer", of_cls_BHM[..., 0]), ("sink", of_cls_BHM.amax(-1))):
            own = mass[(mass["layer"] == layer) & (mass["region"] == region)]
            assert own["answer_mass"].to_numpy() == pytest.approx(wanted.mean(0).numpy(), rel=1e-5)
            assert (own["answer_mass"] != own["mass"]).all()
        nats = -(of_cls_BHM * of_cls_BHM.log()).sum(-1).mean(0).numpy()
        own = entropy[entropy["layer"] == layer]
        assert own["answer_entropy"].to_numpy() == pytest.approx(nats, rel=1e-5)
        assert own["answer_share"].to_numpy() == pytest.approx(nats / math.log(17), rel=1e-5)


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


@pytest.mark.pictures
def test_long_titles_of_scenes_do_not_touch() -> None:
    titles = ["Blackfoot_(Canadian_Aboriginal_Syllabics)/38 ↔ 270°\n(in_weights_common)"] * 4
    figure = scenes_figure(torch.zeros(4, 3, 8, 8), titles)
    figure.draw_without_rendering()
    boxes = [axes.title.get_window_extent() for axes in figure.axes]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert boxes[0].y1 <= figure.bbox.y1
    assert "".join(figure.axes[0].get_title().split()) == "".join(titles[0].split())
