"""Loads a trained model from its run folder, with the softmax it was trained with or any other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from omegaconf import DictConfig
from torch import Tensor, nn

from lab.console import LabError
from lab.datasets.loading import DataModule
from lab.files import as_path
from lab.models.composed_softmax import refuse_schedule, softmax_config
from lab.runs.folder import Run
from lab.training.build import build_data, build_model
from lab.training.resume import fingerprint_in, of_same_data
from lab.training.stored import load_config, made_of

# Matches names of the parameters and buffers of rules and normalisers in a model's state dict.
_OF_SOFTMAX = re.compile(r"\.(rule|normaliser)\.")


@dataclass(frozen=True)
class Trained:
    """A run's checkpoint, read once: models made from it have the same weights, whatever their softmax.

    Attributes:
        folder: the run folder.
        path: the checkpoint.
        config: the run's config.
        state: the model's state dict.
        step: optimiser steps it was trained for.
        data_fingerprint: of the data that it was trained on; None if they are not known.
    """

    folder: Path
    path: Path
    config: DictConfig
    state: Mapping[str, Tensor]
    step: int
    data_fingerprint: Tensor | None

    def __repr__(self) -> str:
        """The checkpoint in one line, without its weights."""
        return f"Trained({self.path}: {self.step:,} steps, {sum(one.numel() for one in self.state.values()):,} numbers)"

    def data(self) -> DataModule:
        """The data of the run, set up; missing files are not downloaded.

        Raises:
            LabError: if files are missing, or are others than the run was trained on.
        """
        with made_of(self.folder):
            data = build_data(self.config.data)
        data.setup("fit")
        self.check_data(data)
        return data

    def check_data(self, data: DataModule) -> None:
        """Checks that ``data``, set up, are those of the run: with other texts, tokens would mean other words.

        Raises:
            LabError: if they are not.
        """
        if not of_same_data(self.data_fingerprint, data):
            raise LabError(
                f"{self.path} was trained on other data than are found now: put the old data back, or read the run's "
                "config and weights alone"
            )

    def softmax_defaults(self) -> list[str]:
        """The experiment's own defaults for NormSoftmax, as overrides."""
        given = (self.config.get("norm_softmax") or {}).items()
        return [f"+norm_softmax.{key}={'null' if value is None else value}" for key, value in given]

    def model(self, softmax: str | DictConfig | None = None, facts: dict[str, int] | None = None) -> nn.Module:
        """The model in evaluation mode.

        Args:
            softmax: softmax to swap in, by name (``"norm_softmax"``) or as a composed ``softmax`` config with options
                (:func:`lab.models.composed_softmax.softmax_config`). Its learned parameters have their initial values;
                if it does not set tau, it takes tau from the trained softmax. None keeps the run's own.
            facts: the data's ``model_arguments()``, if the caller has the data; None builds the data to ask it.

        Raises:
            LabError: if the weights do not fit.
        """
        if not isinstance(softmax, str | DictConfig | None):
            raise LabError(
                f"softmax={softmax!r} is no softmax here: give a name, or a config made by softmax_config(name, ...)"
            )
        if isinstance(softmax, str):
            softmax = softmax_config(softmax, *self.softmax_defaults())
        if softmax is not None:
            refuse_schedule(softmax, "this softmax")
        own = self.config.softmax if softmax is None else softmax
        with made_of(self.folder):
            if facts is None:
                facts = build_data(self.config.data).model_arguments()
            model = build_model(self.config.model, own, facts)
        # Another softmax keeps its own initial parameters, even where the trained softmax has some of the same name.
        kept = {k: v for k, v in self.state.items() if softmax is None or not _OF_SOFTMAX.search(k)}
        if softmax is not None and softmax.get("tau") is None:
            kept |= {k: v for k, v in self.state.items() if k.endswith(".rule.tau")}
        try:
            missing, unexpected = model.load_state_dict(kept, strict=False)
        except RuntimeError as error:
            told = ", ".join(f"{name}={value}" for name, value in facts.items())
            # PyTorch's message names the model in its first line, and what does not fit after it.
            why = str(error).splitlines()[-1].strip()
            raise LabError(f"{self.path} does not fit data of {told}: {why}") from error
        unfit = [name for name in (*missing, *unexpected) if softmax is None or not _OF_SOFTMAX.search(name)]
        if unfit:
            raise LabError(f"{self.path} does not fit its config: {', '.join(unfit[:4])}")
        return model.eval()


def read_trained(
    folder: str | Path, trust: Sequence[str] = (), checkpoint: int | Literal["best"] | None = None
) -> Trained:
    """Reads a checkpoint of a run folder.

        trained = lab.read_trained("runs/reasoning/norm_softmax/seed=0")
        model, data = trained.model(), trained.data()

    A run folder may come from anybody, so its config is treated as data: it may name only the lab's own classes.

    Args:
        folder: the run folder.
        trust: modules beside the lab's whose classes the run's config may name.
        checkpoint: its steps, or ``"best"``; None is the newest intact one.

    Raises:
        LabError: if there is no run or no such checkpoint, it is damaged, or the config names something that is not
            trusted.
    """
    folder = as_path(folder, "read_trained('runs/reasoning/softmax/seed=0')")
    config = load_config(folder, trust)
    run = Run(folder, primary=False)
    found = run.newest_checkpoint() if checkpoint is None else run.checkpoint(checkpoint)
    if found is None:
        best = (run.checkpoints / "best.ckpt").exists()
        raise LabError(
            f"{folder} has no checkpoint of its last steps, but its best one: ask for checkpoint=best"
            if best
            else f"{folder} has no checkpoint yet: let it train for a while"
        )
    state = found.content.get("state_dict") or {}
    own = {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
    return Trained(folder, found.path, config, own, found.step, fingerprint_in(found.content))
