from __future__ import annotations

import torch

from lab.datasets.max_retrieval import MaxRetrievalData
from lab.datasets.prior import prior_accuracy


def test_by_hand() -> None:
    latents = {
        "target_1": torch.tensor([0, 1, 0, 1]),
        "target_2": torch.tensor([2, 2, 0, 3]),
        "target_location": torch.tensor([0, 0, 1, 1]),
    }
    # Labels of the first target are its class, of the second its class + 10.
    labels = torch.tensor([0, 1, 10, 13])
    # Always the first: right in scenes 1 and 2. Always the second: in 3 and 4.
    assert prior_accuracy(latents, labels) == 0.5
    # One label table for both: scene 3 is right by luck, too.
    assert prior_accuracy(latents, torch.tensor([0, 1, 0, 3])) == 0.75


def test_a_class_never_seen_at_a_location_tells_nothing() -> None:
    latents = {
        "target_1": torch.tensor([0, 5]),
        "target_2": torch.tensor([1, 1]),
        "target_location": torch.tensor([0, 1]),
    }
    assert prior_accuracy(latents, torch.tensor([0, 1])) == 0.5


def test_a_label_that_the_target_does_not_decide_has_no_known_plateau() -> None:
    """An operator, say, that the model sees and the latents do not tell."""
    latents = {name: torch.tensor([1, 1, 2]) for name in ("target_1", "target_2")}
    latents["target_location"] = torch.zeros(3, dtype=torch.int64)
    assert prior_accuracy(latents, torch.tensor([4, 5, 0])) is None


def test_of_three_targets_the_best_counts() -> None:
    latents = {f"target_{n}": torch.arange(6) + n for n in (1, 2, 3)}
    latents["target_location"] = torch.tensor([0, 1, 1, 2, 2, 2])
    labels = torch.stack([latents[f"target_{n}"] for n in (1, 2, 3)])[latents["target_location"], torch.arange(6)]
    assert prior_accuracy(latents, labels) == 0.5


def test_a_task_of_one_step_has_no_plateau() -> None:
    assert prior_accuracy({"largest": torch.tensor([1])}, torch.tensor([0])) is None
    assert MaxRetrievalData().prior_accuracy() is None
