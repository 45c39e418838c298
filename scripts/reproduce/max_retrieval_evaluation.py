"""Max retrieval far beyond the trained sizes: accuracies and best temperatures, each measured once and kept.

What has been measured lies in ``evaluation/`` of the run's folder, by checkpoint, so that a stopped evaluation goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig
from torch import Tensor, nn

from lab.datasets.max_retrieval import Batch, MaxRetrievalData
from lab.datasets.seeding import generator_of
from lab.files import write_atomically, write_text
from lab.models.set_attention import SetAttention
from lab.observation.dispersion import best_inverse_temperature, entropy
from lab.observation.recorder import Recorder
from lab.training.load import Trained

SIZES = tuple(2**power for power in range(4, 15))
# Items held at once: 128 MiB of features of width 128.
ITEMS_AT_ONCE = 2**18
ITEMS_IN_ALL = 2**21


def sets_of(size: int, sets: int) -> int:
    """Number of test sets of ``size`` items: fewer at the largest sizes, where each set costs a second."""
    return min(sets, max(sets // 8, ITEMS_IN_ALL // size))


def batches(size: int, sets: int, seed: int, what: str = "test") -> Iterator[Batch]:
    """Sets of ``size`` items, the same for every softmax, others for every seed; in pieces that fit into memory.

    Args:
        size: items of a set.
        sets: how many.
        seed: of the run.
        what: "fit" or "test": the sets to fit a temperature on are drawn separately from those to test it on.
    """
    data = MaxRetrievalData()
    step = max(1, min(sets, ITEMS_AT_ONCE // size))
    for start in range(0, sets, step):
        generator = generator_of(f"max_retrieval {what}", size, start, seed)
        yield data.draw(size, min(step, sets - start), generator)


@torch.no_grad()
def accuracies(models: Mapping[str, SetAttention], size: int, sets: int, seed: int) -> dict[str, float]:
    """Share of right answers on sets of ``size`` items, of models that differ in their softmax alone."""
    right = dict.fromkeys(models, 0)
    for batch in batches(size, sets, seed):
        embedded = next(iter(models.values())).embed(batch["x"])
        for name, model in models.items():
            right[name] += int((model.answer(*embedded).argmax(-1) == batch["y"]).sum())
    return {name: count / sets for name, count in right.items()}


def logits_and_largest(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Attention logits [B, n] at theta = 1 (the trained temperature), and which item is the largest [B]."""
    recorder = Recorder(model, what=("logits",))
    recorder.run(batch["x"])
    return recorder[0]["logits"][:, 0, 0], batch["latents"]["largest"]


@dataclass(frozen=True)
class Points:
    """Sets whose largest item does not have the largest logit; a temperature is fitted to them.

    Attributes:
        entropies: of their attention at theta = 1, in nats.
        betas: the inverse temperature that gives their largest item the most weight.
        without: number of further sets for which no temperature above 0 beats uniform weights: they have no optimum.
    """

    entropies: NDArray[np.float64]
    betas: NDArray[np.float64]
    without: int

    @classmethod
    def of_all(cls, parts: Sequence[Points]) -> Points:
        """Points of all seeds together."""
        entropies = np.concatenate([part.entropies for part in parts])
        return cls(entropies, np.concatenate([part.betas for part in parts]), sum(part.without for part in parts))


def mistaken(model: nn.Module, sets: int, seed: int) -> Points:
    """Points of one model, from ``sets`` sets of every size."""
    entropies, betas = [], []
    for size in SIZES:
        for batch in batches(size, sets, seed, "fit"):
            logits, largest = logits_and_largest(model, batch)
            wrong = logits.argmax(-1) != largest
            betas.append(best_inverse_temperature(logits[wrong], largest[wrong]))
            entropies.append(entropy(logits[wrong].double()))
    every = torch.cat(betas)
    has_one = every > 1e-3
    return Points(torch.cat(entropies)[has_one].numpy(), every[has_one].numpy(), int((~has_one).sum()))


class Evaluation:
    """Evaluation of one trained model, kept in its run folder.

    Args:
        folder: of the run.
        trained: its newest checkpoint.
        seed: of the run.
    """

    def __init__(self, folder: Path, trained: Trained, seed: int) -> None:
        self.trained = trained
        self.seed = seed
        self._folder = folder / "evaluation"
        self._table = self._folder / f"accuracies_step{trained.step}.csv"
        self._rows = self._kept()

    def points(self, sets: int) -> Points:
        """Points of :func:`mistaken` from ``sets`` sets of each size; measured once and kept."""
        path = self._points(sets)
        if not path.exists():
            found = mistaken(self.trained.model(), sets, self.seed)
            write_atomically(path, lambda file: np.savez_compressed(file, allow_pickle=False, **asdict(found)))
        with np.load(path) as kept:
            return Points(kept["entropies"], kept["betas"], int(kept["without"]))

    def accuracies(self, rules: Mapping[str, DictConfig], sets: int) -> pd.DataFrame:
        """Accuracy under each softmax at every size; rows of seed, measure, size, sets, accuracy."""
        for size in SIZES:
            left = {name: rule for name, rule in rules.items() if not self._find(rule, size, sets)}
            if left:
                models: dict[str, Any] = {name: self.trained.model(rule) for name, rule in left.items()}
                found = accuracies(models, size, sets_of(size, sets), self.seed)
                # Another process may have added rows while this one evaluated.
                self._rows = self._kept()
                for name, value in found.items():
                    if not self._find(rules[name], size, sets):
                        self._rows.append({**self._key(rules[name], size, sets), "accuracy": value})
                write_text(self._table, pd.DataFrame(self._rows).to_csv(index=False))
        rows = [
            {"seed": self.seed, "measure": name, **(self._find(rule, size, sets) or {})}
            for size in SIZES
            for name, rule in rules.items()
        ]
        return pd.DataFrame(rows).drop(columns="softmax")

    def items_left(self, rules: Mapping[str, DictConfig], sets: int, fit_sets: int) -> int:
        """Items still to be evaluated, counted once for all softmaxes.

        Until the fit is done, all sizes count, because the coefficients of the refitted softmax are not known.
        """
        fit = 0 if self._points(fit_sets).exists() else fit_sets * sum(SIZES)
        open_sizes = [size for size in SIZES if fit or any(not self._find(r, size, sets) for r in rules.values())]
        return fit + sum(size * sets_of(size, sets) for size in open_sizes)

    def seconds_per_item(self, rules: Mapping[str, DictConfig]) -> float:
        """Seconds per item on this machine, under all these softmaxes together."""
        models: dict[str, Any] = {name: self.trained.model(rule) for name, rule in rules.items()}
        size, sets = 2048, 64
        start = time.perf_counter()
        accuracies(models, size, sets, self.seed)
        return (time.perf_counter() - start) / (size * sets)

    def _kept(self) -> list[dict[Any, Any]]:
        return pd.read_csv(self._table).to_dict("records") if self._table.exists() else []

    def _points(self, sets: int) -> Path:
        return self._folder / f"points_step{self.trained.step}_sets{sets}.npz"

    def _key(self, rule: DictConfig, size: int, sets: int) -> dict[str, Any]:
        options = ", ".join(f"{name!s}={value}" for name, value in rule.items())
        return {"softmax": options, "size": size, "sets": sets_of(size, sets)}

    def _find(self, rule: DictConfig, size: int, sets: int) -> dict[Any, Any] | None:
        key = self._key(rule, size, sets)
        return next((row for row in self._rows if all(row[name] == value for name, value in key.items())), None)
