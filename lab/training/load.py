"""A trained model out of its run folder, under the softmax it was trained with or any other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from lab.config.check import check
from lab.config.command_line import problem_with
from lab.config.compose import compose_config
from lab.console import LabError
from lab.runs.folder import Run
from lab.training.build import build_model, without_schedule

# Names of what rules and normalisers hold in a model's state.
_OF_SOFTMAX = re.compile(r"\.(rule|normaliser)\.")


def load_config(folder: Path) -> DictConfig:
    """The composed config of a run.

    Raises:
        LabError: if there is no run in the folder.
    """
    path = folder / "config.yaml"
    if not path.exists():
        raise LabError(f"{folder} holds no run: config.yaml is missing")
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)
    return config


@dataclass(frozen=True)
class Trained:
    """A run's newest checkpoint, read once: models of any softmax made of it have the same weights.

    Attributes:
        path: the checkpoint.
        config: of the run.
        state: the model's state.
        step: optimiser steps it was trained for.
    """

    path: Path
    config: DictConfig
    state: Mapping[str, Tensor]
    step: int

    def model(self, softmax: DictConfig | None = None, facts: dict[str, int] | None = None) -> nn.Module:
        """The model in evaluation mode.

        Args:
            softmax: a composed ``softmax`` config to swap in, whose learned parameters are at their start; None takes
                the run's own.
            facts: the data's ``model_arguments()``, from who has the data at hand; None loads the data to ask it.

        Raises:
            LabError: if the weights do not fit.
        """
        own = without_schedule(self.config.softmax if softmax is None else softmax)
        if facts is None:
            facts = instantiate(self.config.data).model_arguments()
        model = build_model(self.config.model, own, facts)
        # What another softmax holds is another's, though of the same name: it starts with what it is made with.
        kept = {k: v for k, v in self.state.items() if softmax is None or not _OF_SOFTMAX.search(k)}
        try:
            missing, unexpected = model.load_state_dict(kept, strict=False)
        except RuntimeError as error:
            told = ", ".join(f"{name}={value}" for name, value in facts.items())
            # Torch names the model first, then what does not fit.
            why = str(error).splitlines()[-1].strip()
            raise LabError(f"{self.path} does not fit data of {told}: {why}") from error
        unfit = [name for name in (*missing, *unexpected) if softmax is None or not _OF_SOFTMAX.search(name)]
        if unfit:
            raise LabError(f"{self.path} does not fit its config: {', '.join(unfit)}")
        return model.eval()


def read_trained(folder: Path) -> Trained:
    """The newest checkpoint of a run folder.

    Raises:
        LabError: if there is no run or no checkpoint.
    """
    config = load_config(folder)
    path, content, _ = Run(folder, primary=False).read_newest_checkpoint()
    if path is None:
        raise LabError(f"{folder} has no checkpoint yet: let it train for a while")
    state = {k.removeprefix("model."): v for k, v in content["state_dict"].items() if k.startswith("model.")}
    return Trained(path, config, state, int(content["global_step"]))


def softmax_config(name: str, *overrides: str) -> DictConfig:
    """``softmax=<name>`` with overrides, as on the command line.

    Raises:
        LabError: if they do not compose, or one is wrong.
    """
    if problem := problem_with([f"softmax={name}", *overrides]):
        raise LabError(problem)
    config = compose_config([f"softmax={name}", *overrides])
    OmegaConf.resolve(config.softmax)
    check(OmegaConf.create({"softmax": config.softmax}))
    return config.softmax
