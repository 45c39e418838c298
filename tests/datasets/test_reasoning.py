from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from lab.config.check import check_arguments
from lab.console import LabError
from lab.datasets.reasoning import PLATEAU, ReasoningData, reasoning_table


def test_labels_follow_the_rule() -> None:
    tokens, labels, latents = reasoning_table()
    assert tokens.shape == (14_641, 5)
    assert len({tuple(row) for row in tokens.tolist()}) == 14_641
    for row, label, location in zip(tokens.tolist(), labels.tolist(), latents["target_location"].tolist(), strict=True):
        a, b, c, d, equals = row
        odd_one_out = (a % 2 == 0 and b % 2 == 1) or (a % 2 == 1 and b % 2 == 0)
        assert label == (c if odd_one_out else d)
        assert location == (0 if odd_one_out else 1)
        assert equals == 11


def test_always_the_more_likely_number_gives_the_plateau() -> None:
    _, labels, latents = reasoning_table()
    best = max((latents[name] == labels).float().mean().item() for name in ("target_1", "target_2"))
    assert best == pytest.approx(PLATEAU, abs=1e-6)
    assert f"{PLATEAU:.1%}, {6 / 11:.1%}" == "54.9%, 54.5%"
    data = ReasoningData(seed=3)
    labels, latents = data.batch("validation")["y"], data.batch("validation")["latents"]
    best = max((latents[name] == labels).double().mean().item() for name in ("target_1", "target_2"))
    assert data.prior_accuracy() == pytest.approx(best, abs=1e-12)


def test_split_by_seed() -> None:
    first, again, other = ReasoningData(seed=0), ReasoningData(seed=0), ReasoningData(seed=1)
    assert len(first.batch("train")["x"]) == 4392
    assert torch.equal(first.batch("train")["x"], again.batch("train")["x"])
    assert not torch.equal(first.batch("train")["x"], other.batch("train")["x"])
    train = {tuple(row) for row in first.batch("train")["x"].tolist()}
    validation = {tuple(row) for row in first.batch("validation")["x"].tolist()}
    assert not train & validation
    assert len(train | validation) == 14_641


def test_one_batch_is_an_epoch() -> None:
    data = ReasoningData()
    batches = list(data.train_dataloader())
    assert len(batches) == 1
    assert set(batches[0]) == {"x", "y", "latents"}


def test_processes_share_both_splits_and_have_one_fingerprint() -> None:
    alone = ReasoningData(numbers=7)
    shares = []
    for rank in (0, 1):
        data = ReasoningData(numbers=7)
        data.trainer = SimpleNamespace(world_size=2, global_rank=rank)  # type: ignore[assignment]
        shares.append([data.draw_train(0, 0), *data.val_dataloader()])
        # A checkpoint of two processes is gone on with by one, and the other way round.
        assert torch.equal(data.fingerprint, alone.fingerprint)
    for split, parts in zip(("train", "validation"), zip(*shares, strict=True), strict=True):
        together = {tuple(row) for part in parts for row in part["x"].tolist()}
        assert together == {tuple(row) for row in alone.batch(split)["x"].tolist()}


def test_processes_have_equal_shares_of_the_training_batch() -> None:
    """The mean over them is that of the whole batch only then."""
    data = ReasoningData(numbers=3, train_share=0.36)
    for processes, told in ((1, None), (2, "2 processes cannot share 29 training inputs evenly")):
        data.trainer = SimpleNamespace(world_size=processes, global_rank=0)  # type: ignore[assignment]
        with pytest.raises(LabError, match=told) if told else nullcontext():
            assert len(data.train_dataloader()) == 1


@pytest.mark.parametrize(
    ("numbers", "share", "size"), [(11, 0.3, 4392), (10, 0.57, 5700), (10, 0.69, 6900), (3, 0.5, 40)]
)
def test_the_share_is_rounded_down_as_it_is_written(numbers: int, share: float, size: int) -> None:
    assert ReasoningData(numbers=numbers, train_share=share).batch_size == size


@pytest.mark.parametrize("options", [{"numbers": 1}, {"train_share": 0.0}, {"train_share": 1.0}])
def test_options_are_checked(options) -> None:
    with pytest.raises(LabError, match=r"data\."):
        check_arguments(ReasoningData, options, "data")


def test_both_sides_of_the_split_hold_inputs() -> None:
    with pytest.raises(ValueError, match=r"data\.train_share must leave inputs for training and validation, got 1e-05"):
        ReasoningData(train_share=1e-5)
