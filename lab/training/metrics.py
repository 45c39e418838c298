"""Metrics of an epoch, added up on the model's device: no update makes the CPU wait for the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from lab.attention.precision import but_not_to_16_bit


class WeightedMean(Metric):
    """Weighted mean of numbers; NaN as long as the weights add up to 0.

    torchmetrics' ``MeanMetric`` (1.9) checks for NaN at each update, which waits for the device, and without the check
    (``nan_strategy="disable"``) ignores the weights. The states have the names of its states, also in checkpoints.
    """

    full_state_update = False
    mean_value: Tensor
    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("mean_value", "weight"):
            self.add_state(name, torch.tensor(0.0), dist_reduce_fx="sum")

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = ()) -> WeightedMean:
        # Moved with its module, but never to 16 bit, in which a sum soon stops growing (trainer.precision=bf16-true).
        super()._apply(but_not_to_16_bit(fn), exclude_state)
        return self

    def update(self, value: Tensor, weight: Tensor | float = 1.0) -> None:
        """Adds numbers of any shape; ``weight`` is one number for all, or has their shape (such as a mask)."""
        weighted = value.to(self.mean_value.dtype) * weight
        if isinstance(weight, Tensor):
            # The mean of no labels is NaN, and counts for nothing.
            weighted = weighted.masked_fill(weight == 0, 0.0)
        self.mean_value += weighted.sum()
        self.weight += weight.sum() if isinstance(weight, Tensor) else weight * value.numel()

    def compute(self) -> Tensor:
        """Mean over all updates, a single number."""
        return self.mean_value / self.weight


class LossAndAccuracy(MetricCollection):
    """Mean ``loss`` and share of right answers (``accuracy``) in one collection; one call updates both.

    Args:
        num_classes: number of labels.
        ignored: label that is not counted; None counts all.
    """

    def __init__(self, num_classes: int, ignored: int | None = None) -> None:
        # "micro": the share of right answers, as in the papers, not the mean over classes. To validate the arguments
        # would wait for the device; the loss refuses a label that does not exist.
        accuracy: Metric = MulticlassAccuracy(num_classes, average="micro", validate_args=False)
        # torchmetrics' own ignore_index selects by a mask, and the CPU waits for the size of the selection.
        super().__init__({"loss": WeightedMean(), "accuracy": accuracy if ignored is None else WeightedMean()})
        self._ignored = ignored

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Takes ``logits`` [B, (M,) classes], ``target`` [B, (M)] and the mean ``loss`` of the batch."""
        logits, target = kwargs["logits"], kwargs["target"]
        if self._ignored is None:
            self["loss"].update(kwargs["loss"], len(target))
            self["accuracy"].update(logits.flatten(0, -2), target.flatten())
        else:
            counted = target != self._ignored
            self["loss"].update(kwargs["loss"], counted.sum())
            self["accuracy"].update(logits.argmax(-1) == target, counted)
