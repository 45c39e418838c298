"""Loss and accuracies of a checkpoint on its validation set, with standard errors, beside simple reference models.

Shapes: B samples of a batch, M answers of a sample, P pairs of a token and the next one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor

from lab.callbacks.diagnostics.base import CheckpointDiagnostic
from lab.console import LabError
from lab.datasets.loading import IGNORED, Batch
from lab.datasets.prior import bigram_loss
from lab.datasets.text.data import CausalLanguageData
from lab.observation.gradients import TrainingState, in_own_precision
from lab.observation.observe import Findings, Rows, device_of
from lab.observation.recorder import evaluating, own_random_numbers
from lab.observation.subject import Subject


class Validation(CheckpointDiagnostic):
    """Validates a checkpoint: the numbers that its run logs as ``val/...``, with standard errors.

    Table: number, value, standard_error, samples. Numbers are ``loss`` (nats) and all accuracies of the data. Where a
    sample asks for several tokens and the loss is cross-entropy, ``perplexity`` and ``bits_per_token`` are the same
    loss in other units; for causal language also ``bits_per_byte``, by which models of different vocabularies can be
    compared: bits of all predicted tokens over the bytes of their text in UTF-8, where the end of a document counts as
    one byte, a line break. Only a byte-level tokeniser keeps all of the text: under others there is no such row.

    For comparison: ``prior_loss`` and ``prior_accuracy``, the plateau, as in ``summary.json``; and for causal language
    ``bigram_loss``, the loss of an interpolated bigram model of the training tokens
    (:func:`lab.datasets.prior.bigram_loss`).

    Standard errors are over samples (blocks of a text, since tokens of one block are alike); samples with more answers
    count more, as in the value itself.

    Args:
        folder: where the look is kept.
    """

    needs = "labels"

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        raise LabError(
            f"{self.place} does not work during training, which validates by itself: leave it out, and use lab.inspect "
            "after"
        )

    def look(self, subject: Subject) -> Findings:
        """Loss and accuracies of a checkpoint."""
        assert subject.trained is not None  # as ``needs`` ensures
        validated = _Validated(subject.trained)
        found = Findings([{"number": "loss", **validated.loss()}])
        found.rows += [
            {"number": "accuracy" + (f"_{name}" if name else ""), **_mean(sums)}
            for name, sums in validated.accuracies.items()
        ]
        found.rows += validated.in_other_units() + validated.references()
        return found


class _Validated:
    """A checkpoint, validated once: sums of losses and of right answers, sample by sample.

    Args:
        trained: the checkpoint.

    Attributes:
        accuracies: name of an accuracy ("" for that of all samples) -> sums of each batch.
    """

    def __init__(self, trained: TrainingState) -> None:
        self._data = trained.data
        self.accuracies: dict[str, list[Tensor]] = {}
        # Of each batch: mean loss, sums over its samples, and the tokens that are asked for with those before them.
        self._means: list[float] = []
        self._losses: list[Tensor] = []
        self._pairs: list[Tensor] = []
        self._several = False
        device = device_of(trained.module)
        with own_random_numbers(device), torch.no_grad():
            module, precision = in_own_precision(trained)
            self._optim = module.optim
            with evaluating(module):
                for drawn in self._data.val_dataloader():
                    batch = self._data.on_after_batch_transfer(move_data_to_device(drawn, device), 0)
                    batch = precision.convert_input(batch)
                    with precision.forward_context():
                        self._add(module.model(batch["x"]), batch)

    def _add(self, logits: Tensor, batch: Batch) -> None:
        """Adds a batch, as training's own validation scores it."""
        for name, (answers, target, counted) in self._data.scored(logits, batch).items():
            asked = target != IGNORED
            asked = asked if counted is None else asked & counted
            self.accuracies.setdefault(name, []).append(_sums((answers.argmax(-1) == target) & asked, asked))
            if name:
                continue
            self._means.append(float(self._optim.loss(answers, target)))
            each = [self._optim.loss(answers[i : i + 1], target[i : i + 1]) for i in range(len(target))]
            each_B, count_B = torch.stack(each).cpu().double(), _sums(asked, asked)[:, 1]
            # The mean of no answers is NaN.
            self._losses.append(torch.stack([each_B.where(count_B > 0, 0.0) * count_B, count_B], dim=1))
            self._several = target.dim() == 2
            if isinstance(self._data, CausalLanguageData):
                self._pairs.append(torch.stack([batch["x"], target], dim=-1).flatten(0, 1).cpu())

    def loss(self) -> dict[str, Any]:
        """Value, standard error and samples of the loss; the value as training averages it, from means of batches."""
        counts = np.array([float(sums_B2[:, 1].sum()) for sums_B2 in self._losses])
        asked = counts > 0  # the mean of a batch that asks for nothing is NaN
        value = np.average(np.array(self._means)[asked], weights=counts[asked]) if asked.any() else math.nan
        return _mean(self._losses) | {"value": float(value)}

    def in_other_units(self) -> Rows:
        """Rows of the loss of tokens in other units than nats; none of another loss."""
        if self._optim.own_loss or not self._several:
            return []
        loss = self.loss()
        slopes = {"bits_per_token": 1 / math.log(2)}
        if self._pairs and self._data.tokens.keeps_bytes:
            tokens_P = torch.cat(self._pairs)[:, 1]
            slopes["bits_per_byte"] = len(tokens_P) / self._bytes(tokens_P.tolist()) / math.log(2)
        perplexity = math.exp(min(loss["value"], 700.0))  # beyond that a float is infinite
        rows = [{"number": "perplexity", **_scaled(loss, perplexity), "value": perplexity}]
        return rows + [{"number": name, **_scaled(loss, slope)} for name, slope in slopes.items()]

    def references(self) -> Rows:
        """Rows of the plateau, and of a bigram model of the training text; none where the data do not tell them."""
        found: dict[str, float | None] = {"prior_accuracy": self._data.prior_accuracy()}
        if not self._optim.own_loss:
            found["prior_loss"] = self._data.prior_loss()
            if self._pairs:
                before_P, answers_P = torch.cat(self._pairs).numpy().T
                tokens = self._data.tokens
                found["bigram_loss"] = bigram_loss(tokens.streams["train"], before_P, answers_P, tokens.vocabulary)
        return [{"number": name, "value": value} for name, value in found.items() if value is not None]

    def _bytes(self, tokens: Sequence[int]) -> int:
        """Bytes in UTF-8 of the text of tokens; the end of a document counts as one, a line break."""
        end = self._data.tokens.special.end
        plain = [token for token in tokens if token != end]
        text: str = self._data.tokens.tokenizer.decode(plain, skip_special_tokens=False)
        return len(text.encode()) + len(tokens) - len(plain)


def _sums(right: Tensor, asked: Tensor) -> Tensor:
    """Right answers of each sample, and answers asked for, from bool [B] or [B, M]; [B, 2] float64 on the CPU."""
    return torch.stack([one.reshape(len(one), -1).sum(1) for one in (right, asked)], dim=1).cpu().double()


def _mean(sums: Sequence[Tensor]) -> dict[str, Any]:
    """Mean of all answers with its standard error over samples, from sums [B, 2] of each batch.

    The error is that of a ratio of two sums, sqrt(n / (n - 1) sum_i (s_i - mean c_i)^2) / sum_i c_i; where all samples
    have equally many answers, that is the standard deviation over the square root of n.
    """
    sums_S2 = torch.cat(list(sums))
    sums_S2 = sums_S2[sums_S2[:, 1] > 0]
    total, count = sums_S2.sum(0).tolist()
    n, mean = len(sums_S2), total / count if count else math.nan
    spread = float((sums_S2[:, 0] - mean * sums_S2[:, 1]).square().sum())
    error = math.sqrt(n / (n - 1) * spread) / count if n > 1 else math.nan
    return {"value": mean, "standard_error": error, "samples": n}


def _scaled(loss: dict[str, Any], slope: float) -> dict[str, Any]:
    """Value and standard error of a loss, times a factor."""
    return loss | {name: slope * loss[name] for name in ("value", "standard_error")}
