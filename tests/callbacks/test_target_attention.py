"""The answer token's attention on the right target beside the others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

from lab.attention.normalisers.softmax import Softmax
from lab.callbacks.diagnostics.target_attention import TargetAttention
from lab.console import LabError
from lab.models.compact_vit import CompactViT
from lab.observation.observe import Chunk, observe

# Keys: the answer's token, a target of one token, one of two, and a bystander.
PLACES = {"target_1": [0, 1, 0, 0, 0], "target_2": [0, 0, 1, 1, 0], "indicator_1": [0, 0, 0, 0, 1]}
TARGETS = {"target_1": torch.zeros(1), "target_2": torch.zeros(1)}  # their classes, which do not matter here
FINDS = {0: [0.1, 0.6, 0.1, 0.1, 0.1], 1: [0.1, 0.2, 0.3, 0.4, 0.0]}
ALWAYS_FIRST = [0.0, 0.9, 0.05, 0.05, 0.0]


def chunk_of(right: list[int]) -> Chunk:
    """Scenes in which head 0 looks at the right target, and head 1 at the first one whichever is right."""
    answer_BHM = torch.tensor([[FINDS[z], ALWAYS_FIRST] for z in right])
    weights_BHNM = torch.full((len(right), 2, 5, 5), 0.2)
    weights_BHNM[:, :, 0] = answer_BHM
    model: Any = SimpleNamespace(answer_token=0, normalisers=lambda: [Softmax(heads=2, head_dim=4)])
    regions = {name: torch.tensor(place).bool().expand(len(right), -1) for name, place in PLACES.items()}
    batch = {"y": torch.zeros(len(right)), "latents": {"target_location": torch.tensor(right), **TARGETS}}
    return Chunk(batch, regions, [{"weights": weights_BHNM}], model)


def test_right_and_wrong_are_told_by_location_over_all_chunks(tmp_path: Path) -> None:
    looks = TargetAttention(str(tmp_path))
    # Location 0 is right in seven scenes of nine, and in none of the last chunk.
    found = looks.conclude([looks.see(chunk_of(right)) for right in ([0, 1, 0], [0, 0, 0, 0, 0], [1])])
    table = pd.DataFrame(found.rows).set_index(["head", "location"])
    assert table["scenes"].to_dict() == {(0, 0): 7, (1, 0): 7, (0, 1): 2, (1, 1): 2}
    assert table["right"].to_dict() == pytest.approx({(0, 0): 0.6, (0, 1): 0.7, (1, 0): 0.9, (1, 1): 0.1})
    assert table["wrong"].to_dict() == pytest.approx({(0, 0): 0.2, (0, 1): 0.2, (1, 0): 0.1, (1, 1): 0.9})
    # Locations count alike: a head that does not know z has no preference for the right target.
    by_head = table.groupby("head")[["right", "wrong"]].mean()
    assert by_head.loc[1, "right"] == pytest.approx(by_head.loc[1, "wrong"])
    assert found.scalars == pytest.approx({"right/layer_0": 0.575, "wrong/layer_0": 0.35})


def test_a_location_that_is_never_right_has_no_row(tmp_path: Path) -> None:
    looks = TargetAttention(str(tmp_path))
    found = looks.conclude([looks.see(chunk_of([1, 1]))])
    assert {row["location"] for row in found.rows} == {1}


@pytest.mark.parametrize("missing", ["latent target_location", "latent target_2", "place of target_2"])
def test_data_without_a_choice_of_targets_is_refused(
    tmp_path: Path, vision_data, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    model = CompactViT(**vision_data.model_arguments(), patch_size=14, depth=1, heads=1, head_dim=8)
    if missing.startswith("place"):
        regions = vision_data.regions
        monkeypatch.setattr(vision_data, "regions", lambda batch: {"target_1": regions(batch)["target_1"]})
    else:
        composed = vision_data.on_after_batch_transfer

        def without(batch: Any, index: int) -> Any:
            made = composed(batch, index)
            return {
                **made,
                "latents": {name: own for name, own in made["latents"].items() if f"latent {name}" != missing},
            }

        monkeypatch.setattr(vision_data, "on_after_batch_transfer", without)
    with pytest.raises(LabError, match=f"this data has no {missing}: leave it out"):
        observe(model, vision_data, [TargetAttention(str(tmp_path), scenes=10)], "cpu")


def test_targets_at_one_place_are_refused(tmp_path: Path) -> None:
    """As in color_or_fashion, whose two targets are the colour and the shape of one tile."""
    looks = TargetAttention(str(tmp_path))
    chunk = chunk_of([0, 1])
    chunk.regions["target_2"] = chunk.regions["target_1"]
    with pytest.raises(LabError, match="the targets of this data are at the same place: leave it out"):
        looks.conclude([looks.see(chunk)])
