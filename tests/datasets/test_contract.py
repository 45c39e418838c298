"""What data of one's own must be is checked before training: by a sentence that says which part is wrong."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lab.console import LabError
from lab.datasets.contract import check_data, check_parts, same
from lab.datasets.loading import Batch, DataModule
from lab.datasets.seeding import generator_of


class Even(DataModule):
    """y is b if a is even, else c; ``change`` makes a mistake in each batch."""

    locations = ("b", "c")

    def __init__(self) -> None:
        super().__init__()
        self.batch_size, self.validation_size, self.epoch_size = 6, 8, 12

    def model_arguments(self) -> dict[str, int]:
        return {"tokens": 10, "context": 3, "num_classes": 10}

    def draw_train(self, epoch: int, step: int) -> Any:
        return self.change(self._draw(self.batch_size, generator_of("train", epoch, step)))

    def draw_validation(self, index: int) -> Any:
        size = len(self.validation_samples(index, self.batch_size))
        return self.change(self._draw(size, generator_of("validation", index)))

    def change(self, batch: Batch) -> Any:
        return batch

    def _draw(self, size: int, generator: torch.Generator | None) -> Batch:
        a, b, c = (digits := torch.randint(10, (size, 3), generator=generator)).unbind(1)
        return {"x": digits, "y": torch.where(a % 2 == 0, b, c), "latents": {"target_location": a % 2}}


def test_right_data_pass_and_no_random_number_of_training_is_drawn() -> None:
    data, before = Even(), torch.get_rng_state()
    check_parts(data)
    first = check_data(data)
    assert (len(first.train["y"]), len(first.validation["y"])) == (6, 6)
    assert torch.equal(torch.get_rng_state(), before)


def test_inputs_may_be_tensors_by_name_or_in_tuples(monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = lambda self, batch: {**batch, "x": {"ids": batch["x"], "both": (batch["x"], batch["y"])}}  # noqa: E731
    monkeypatch.setattr(Even, "change", by_name)
    check_data(Even())
    monkeypatch.setattr(Even, "change", lambda self, batch: {**batch, "x": {"ids": (batch["x"], batch["y"][:2])}})
    with pytest.raises(LabError, match=r"gives x as \[2\] int64"):
        check_data(Even())


def test_data_that_are_slow_to_draw_are_checked_on_few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(self: Even) -> tuple[Any, Any]:
        drawn = (self._draw(2, generator_of("validation", 0)), self._draw(2, generator_of("train", 0, 0)))
        return self.change(drawn[0]), self.change(drawn[1])

    monkeypatch.setattr(Even, "first_batches", few)
    monkeypatch.setattr(Even, "draw_train", None)
    monkeypatch.setattr(Even, "draw_validation", None)
    assert len(check_data(Even()).train["y"]) == 2
    monkeypatch.setattr(Even, "change", lambda self, batch: {**batch, "y": torch.randint(10, (2,))})
    torch.manual_seed(0)
    with pytest.raises(LabError, match=r"first_batches\(\) gives another batch when it is called again"):
        check_data(Even())


def with_(**parts: Any) -> Any:
    return lambda batch: {**batch, **parts}


def with_latent(name: str, change: Any) -> Any:
    """Gives batches a latent, which is what ``change`` makes of the place of the answer, 0 or 1."""
    return lambda batch: {**batch, "latents": {**batch["latents"], name: change(batch["latents"]["target_location"])}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda batch: (batch["x"], batch["y"]), "and gives tuple"),
        (lambda batch: {"x": batch["x"], "y": batch["y"]}, "with {} for latents .*, and gives a dict of x, y$"),
        (lambda batch: {**batch, "y": batch["y"].float()}, r"labels of .*Even.draw_train\(0, 0\) must be .* int64"),
        (lambda batch: {**batch, "y": batch["y"] + 1}, "num_classes=10: labels are 0 to 9"),
        (lambda batch: {**batch, "y": batch["y"][:-1]}, "must give 5 inputs, one for each label"),
        (lambda batch: {key: value[:-1] for key, value in batch.items() if key != "latents"} | {"latents": {}},
         r"locations \(b, c\)"),
        (lambda batch: {**batch, "y": batch["y"][:, None]}, r"the place of each answer, \[6, 1\] from 0 to 1"),
        (with_(latents={}), "but .* has none"),
        (with_(latents=[]), "latents of .* must be a dict"),
        (with_latent("color_1", lambda a: a.float()), "color_1 of .* a class, int64 from 0 on, .* float32 from"),
        (with_latent("target_1", lambda a: a - 1), r"target_1 of .* must be a class, int64 from 0 on, .* from -1"),
        (with_latent("indicator_1", lambda a: a - 1), "latent indicator_1 of .* must be a class"),
        (with_latent("color_1", lambda a: a - 1), "latent color_1 of .* must be a class"),
        (with_latent("target_location", lambda a: a - 1), "latent target_location of .* must be a class"),
        (lambda batch: {**batch, "latents": {"target_location": batch["y"] + 2}}, "has .* int64 from"),
        (lambda batch: {**batch, "latents": {**batch["latents"], "a": torch.zeros(2)}}, "latent a of"),
        (lambda batch: {**batch, "x": batch["x"] / 0}, "hold NaN or infinity"),
        (lambda batch: batch["z"], "Even.draw_train.* fails: KeyError: 'z' .*test_contract.py, line"),
        (with_(x=torch.full((6, 3), 10)), r"whole numbers from 0 to 9, .* and are \[6, 3\] int64 from 10 to 10"),
        (with_(x=torch.full((6, 3), -1)), "whole numbers from 0 to 9"),
        (with_(x=torch.ones(6, 3)), r"whole numbers from 0 to 9, .* float32"),
        (lambda batch: {**batch, "x": torch.randint(10, (len(batch["y"]), 3))}, "gives another batch when it is"),
    ],
)  # fmt: skip
def test_each_mistake_is_named(change: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Even, "change", lambda self, batch: change(batch))
    with pytest.raises(LabError, match=words):
        check_data(Even())


def test_the_validation_batch_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Even, "draw_validation", lambda self, index: {})
    with pytest.raises(LabError, match=r"Even.draw_validation\(0\) must give"):
        check_data(Even())


def whole_at_each_index(self: Even, index: int) -> Any:
    return self._draw(self.validation_size, generator_of("validation", index))


def full_at_each_index(self: Even, index: int) -> Any:
    return self._draw(self.batch_size, generator_of("validation", index))


def only_the_first_seeded(self: Even, index: int) -> Any:
    size = len(self.validation_samples(index, self.batch_size))
    return self._draw(size, None if index else generator_of("validation"))


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (
            whole_at_each_index,
            r"draw_validation\(0\) gives 8 samples, .* of 8 in batches of 6 leaves 6 for it: draw len",
        ),
        (
            full_at_each_index,
            r"Even.draw_validation\(1\) gives 6 samples, .* of 8 in batches of 6 leaves 2 for it: draw",
        ),
        (only_the_first_seeded, r"Even.draw_validation\(1\) gives another batch when it is called again"),
    ],
)
def test_the_last_validation_batch_is_drawn_and_counted(draw: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Even, "draw_validation", draw)
    with pytest.raises(LabError, match=words):
        check_data(Even())
    # Batches of a loader of one's own may be of any size, and there may be one only.
    monkeypatch.setattr(Even, "val_dataloader", lambda self: self.validation_loader(self.validation_size))
    check_data(Even())


def test_batches_that_are_cut_in_ones_own_way_are_drawn_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    whole = lambda self, index: drawn.append(index) or whole_at_each_index(self, index)  # noqa: E731
    monkeypatch.setattr(Even, "draw_validation", whole)
    monkeypatch.setattr(Even, "validation_batches", lambda self, batch_size: range(5))
    check_data(Even())
    assert drawn == [0, 0, 4, 4]


@pytest.mark.parametrize("rank", [0, 1])
def test_each_of_several_processes_checks_the_whole_set(rank: int) -> None:
    data = Even()
    data.trainer = SimpleNamespace(world_size=2, global_rank=rank)  # type: ignore[assignment]
    assert len(check_data(data).validation["y"]) == 6


def test_data_are_set_up_unless_a_trainer_has_done_so() -> None:
    class Few(Even):
        def setup(self, stage: str | None = None) -> None:
            self.validation_size = 3

    assert len(check_data(Few()).validation["y"]) == 3
    data = Few()
    data.trainer = SimpleNamespace(world_size=1, global_rank=0)  # type: ignore[assignment]
    assert len(check_data(data).validation["y"]) == 6


def test_nan_in_a_latent_that_is_no_class_is_no_other_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    change = with_latent("height", lambda a: torch.full((len(a),), math.nan))
    monkeypatch.setattr(Even, "change", lambda self, batch: change(batch))
    check_data(Even())


def test_data_without_a_number_of_labels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Even, "model_arguments", lambda self: {"tokens": 10})
    with pytest.raises(LabError, match=r"Even.model_arguments\(\) gives no num_classes, the number of labels"):
        check_data(Even())


def test_a_batch_of_another_size_and_names_that_are_a_text_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Even()
    monkeypatch.setattr(data, "draw_train", lambda epoch, step: data._draw(4, generator_of("train", epoch, step)))
    with pytest.raises(LabError, match="gives 4 samples, but its batch_size is 6"):
        check_data(data)
    monkeypatch.setattr(Even, "locations", "left")
    with pytest.raises(LabError, match=r"locations is a text: write a tuple, \(\"left\",\)"):
        check_data(Even())


def test_parts_are_asked_for_before_anything_is_drawn() -> None:
    data = Even()
    del data.epoch_size
    with pytest.raises(LabError, match="Even has no epoch_size, a number of samples: set it in __init__"):
        check_parts(data)

    class OwnEpochs(Even):
        def train_dataloader(self) -> Any:
            return self.training_loader(3)

    whole = OwnEpochs()
    del whole.epoch_size
    check_parts(whole)
    del whole.batch_size
    with pytest.raises(LabError, match="has no batch_size"):
        check_parts(whole)

    class NotCalled(Even):
        def __init__(self) -> None:
            self.batch_size = 3

    for check in (check_parts, check_data):
        with pytest.raises(LabError, match=r"NotCalled does not call super\(\).__init__\(\)"):
            check(NotCalled())


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, 1.0]), True),
        (torch.tensor([math.nan]), torch.tensor([0.0]), False),
        (torch.tensor([1]), torch.tensor([1.0]), False),
        (torch.tensor([True]), torch.tensor([True]), True),
        ({"split": "train"}, {"split": "test"}, False),
        ([torch.ones(2), math.nan], [torch.ones(2), math.nan], True),
        ((1,), (2,), False),
    ],
)
def test_batches_are_the_same_where_all_their_numbers_are(one: object, other: object, alike: bool) -> None:
    assert same(one, other) is alike
