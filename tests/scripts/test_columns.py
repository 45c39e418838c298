"""What a model sees of the columns of two garments, before training."""

from __future__ import annotations

import pytest

from lab.console import LabError
from scripts.columns import table

SMALL = ["data/source=drawn", "model.depth=2", "model.heads=2", "model.head_dim=8", "model.patch_size=4"]


def test_without_positions_columns_are_seen_only_where_patches_straddle_tiles() -> None:
    aligned, straddling, placed = "data.tile_size=8", "data.tile_size=6", "data.tile_size=8 model.position_std=1.0"
    found = table([f"{aligned} model.position_std=0", f"{straddling} model.position_std=0", placed], [], 8, SMALL)
    same, one = found["same column"], found["one column"]
    assert same[0] < 1e-12 and one[0] < 1e-12
    assert same[1] > 1e-6 and one[1] > 1e-4
    assert same[2] > 1e-9 and one[2] > 1e-6
    assert (found["garments"] > 1e-5).all()


def test_other_tasks_are_refused() -> None:
    with pytest.raises(LabError, match="the columns of garments are those of top_if_above, and this is SameColor"):
        table(["data/task=same_color"], [], 8, SMALL)
