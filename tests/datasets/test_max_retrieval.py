"""Sets of items: the label is the class of the largest one."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from lab.config.check import check_arguments
from lab.console import LabError
from lab.datasets.max_retrieval import MaxRetrievalData
from lab.datasets.seeding import generator_of


def test_labels_are_those_of_the_largest_item() -> None:
    data = MaxRetrievalData(batch_size=500)
    for step in range(6):
        batch = data.draw_train(0, step)
        items, query = batch["x"]
        assert query.shape == (500, 1)
        for features, label in zip(items.tolist(), batch["y"].tolist(), strict=True):
            largest = max(features, key=lambda item: item[0])
            assert largest[1:].index(1.0) == label
            assert sum(largest[1:]) == 1.0


def test_sizes_are_uniform_and_the_same_for_all_seeds() -> None:
    one, other = MaxRetrievalData(batch_size=2, seed=0), MaxRetrievalData(batch_size=2, seed=1)
    sizes = [one.draw_train(3, step)["x"][0].shape[1] for step in range(1200)]
    assert sizes == [other.draw_train(3, step)["x"][0].shape[1] for step in range(1200)]
    counts = torch.tensor(sizes).bincount(minlength=17)[5:]
    assert counts.sum() == 1200
    assert (counts - 100).abs().max() < 45
    assert not torch.equal(one.draw_train(0, 0)["x"][1], other.draw_train(0, 0)["x"][1])


def test_batches_are_a_function_of_their_place_and_validation_is_fixed() -> None:
    one, other = MaxRetrievalData(seed=4), MaxRetrievalData(seed=4)
    assert torch.equal(one.draw_train(2, 7)["x"][0], other.draw_train(2, 7)["x"][0])
    fixed = [batch["y"] for batch in one.val_dataloader()]
    assert sum(map(len, fixed)) == 2048
    assert all(torch.equal(a, b["y"]) for a, b in zip(fixed, MaxRetrievalData(seed=9).val_dataloader(), strict=True))


def test_any_size_can_be_drawn() -> None:
    batch = MaxRetrievalData(classes=3).draw(1000, 7, generator_of("test"))
    assert batch["x"][0].shape == (7, 1000, 4)
    assert 0.45 < batch["x"][0][..., 0].mean() < 0.55


@pytest.mark.parametrize(("rank", "name", "place"), [(2, "second_largest", -2), (-1, "smallest", 0)])
def test_another_rank_can_be_asked_for(rank: int, name: str, place: int) -> None:
    data = MaxRetrievalData(batch_size=50, rank=rank)
    batch = data.draw_train(0, 0)
    items = batch["x"][0]
    for features, label, where in zip(items, batch["y"], batch["latents"][name], strict=True):
        wanted = features[features[:, 0].argsort()[place]]
        assert wanted[1 + label] == 1 and torch.equal(features[where], wanted)
    assert data.regions(batch)[name].sum() == 50
    assert torch.equal(items, MaxRetrievalData(batch_size=50).draw_train(0, 0)["x"][0])


@pytest.mark.parametrize(
    "options",
    [
        {"classes": 0},
        {"rank": 3},
        {"smallest": 1, "rank": 2},
        {"validation_items": 1, "rank": 2},
        {"smallest": 9, "largest": 8},
        {"epoch_steps": 0},
    ],
)
def test_sizes_are_checked(options: dict) -> None:
    with pytest.raises((LabError, ValueError), match=r"data\."):
        check_arguments(MaxRetrievalData, options, "data")
        MaxRetrievalData(**options)


def test_every_place_in_training_has_sets_of_its_own() -> None:
    seen = set()
    for seed, epoch, step, rank in itertools.product((0, 1), repeat=4):
        data = MaxRetrievalData(batch_size=2, smallest=5, largest=5, seed=seed)
        data.trainer = SimpleNamespace(world_size=2, global_rank=rank)  # type: ignore[assignment]
        seen.add(data.draw_train(epoch, step)["x"][1][0].item())
    assert len(seen) == 16
