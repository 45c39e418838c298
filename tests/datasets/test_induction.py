"""Random tokens that repeat: what is asked for can be known, and the plateau is that of copying any token."""

import math

import pytest
import torch

from lab.datasets.induction import InductionData
from lab.datasets.loading import IGNORED


def test_the_answer_is_what_followed_the_last_occurrence_and_is_asked_for_wherever_it_can_be_known() -> None:
    batch = InductionData(tokens=20, length=30, shortest=3, longest=12, batch_size=200).draw_train(0, 0)
    for x, y in zip(batch["x"].tolist(), batch["y"].tolist(), strict=True):
        for place, (token, answer) in enumerate(zip(x, y, strict=True)):
            before = [earlier for earlier in range(place) if x[earlier] == token]
            assert answer == (x[before[-1] + 1] if before else IGNORED)
            if place + 1 < len(x) and answer != IGNORED:
                assert x[place + 1] == answer


def test_periods_and_tokens_are_even() -> None:
    data = InductionData(tokens=10, length=20, shortest=4, longest=7, batch_size=4000)
    batch = data.draw_train(0, 0)
    periods = (batch["y"] == IGNORED).sum(1)
    counts = periods.bincount(minlength=8)
    assert counts[:4].sum() == 0 and (counts[4:] - 1000).abs().max() < 120
    assert (batch["x"][:, 0].bincount(minlength=10) - 400).abs().max() < 80
    # Within a period no token comes twice.
    assert all(len(set(x[:period])) == period for x, period in zip(batch["x"].tolist(), periods.tolist(), strict=True))


def test_batches_are_a_function_of_their_place_and_validation_is_fixed() -> None:
    one, other = InductionData(seed=4), InductionData(seed=4)
    assert torch.equal(one.draw_train(2, 7)["x"], other.draw_train(2, 7)["x"])
    assert not torch.equal(one.draw_train(2, 7)["x"], InductionData(seed=5).draw_train(2, 7)["x"])
    fixed = [batch["x"] for batch in one.val_dataloader()]
    assert sum(map(len, fixed)) == 512
    assert all(torch.equal(a, b["x"]) for a, b in zip(fixed, InductionData(seed=9).val_dataloader(), strict=True))


def test_the_plateau_is_that_of_copying_any_token_of_the_sequence() -> None:
    data = InductionData(validation_size=100, batch_size=32)  # the last batch is smaller
    right, answers, loss = 0.0, 0, 0.0
    for batch in data.val_dataloader():
        for x, y in zip(batch["x"].tolist(), batch["y"].tolist(), strict=True):
            asked = [one for one in y if one != IGNORED]
            right += sum(1 / len(set(x)) for _ in asked)
            loss += sum(math.log(len(set(x))) for _ in asked)
            answers += len(asked)
    assert data.prior_accuracy() == pytest.approx(right / answers)
    assert data.prior_loss() == pytest.approx(loss / answers)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shortest": 9, "longest": 8}, "data.shortest=9 exceeds data.longest=8"),
        ({"tokens": 31}, "data.longest=32 different tokens are more than there are: data.tokens=31"),
        ({"length": 32}, "data.length=32 tokens do not repeat after data.longest=32: raise the length"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        InductionData(**options)
