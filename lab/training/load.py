"""A trained model out of its run folder, under the softmax it was trained with or any other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig
from torch import Tensor, nn

from lab.console import LabError
from lab.models.composed_softmax import without_schedule
from lab.models.parts import normalisers_of, rules_of
from lab.runs.folder import Run
from lab.training.build import build_data, build_model
from lab.training.stored import load_config, made_of

# Names of what rules and normalisers hold in a model's state.
_OF_SOFTMAX = re.compile(r"\.(rule|normaliser)\.")


@dataclass(frozen=True)
class Trained:
    """A run's newest checkpoint, read once: models of any softmax made of it have the same weights.

    Attributes:
        folder: of the run.
        path: the checkpoint.
        config: of the run.
        state: the model's state.
        step: optimiser steps it was trained for.
    """

    folder: Path
    path: Path
    config: DictConfig
    state: Mapping[str, Tensor]
    step: int

    def model(self, softmax: DictConfig | None = None, facts: dict[str, int] | None = None) -> nn.Module:
        """The model in evaluation mode.

        Args:
            softmax: a composed ``softmax`` config to swap in; None takes the run's own.
            facts: the data's ``model_arguments()``, from who has the data at hand; None loads the data to ask it.

        Raises:
            LabError: if the weights do not fit.
        """
        own = without_schedule(self.config.softmax if softmax is None else softmax)
        with made_of(self.folder):
            if facts is None:
                facts = build_data(self.config.data).model_arguments()
            model = build_model(self.config.model, own, facts)
        try:
            missing, unexpected = model.load_state_dict(self.state, strict=False)
        except RuntimeError as error:
            told = ", ".join(f"{name}={value}" for name, value in facts.items())
            # Torch names the model first, then what does not fit.
            why = str(error).splitlines()[-1].strip()
            raise LabError(f"{self.path} does not fit data of {told}: {why}") from error
        # Another softmax has parameters of its own; everything else must fit.
        unfit = [name for name in (*missing, *unexpected) if softmax is None or not _OF_SOFTMAX.search(name)]
        if unfit:
            raise LabError(f"{self.path} does not fit its config: {', '.join(unfit[:4])}")
        if softmax is not None:
            _reset_softmax(model, build_model(self.config.model, own, facts))
        return model.eval()


def read_trained(folder: Path, trust: Sequence[str] = ()) -> Trained:
    """The newest checkpoint of a run folder.

    Args:
        folder: of the run.
        trust: modules that its config may name, beside the lab's.

    Raises:
        LabError: if there is no run or no intact checkpoint, or the config names something that is not trusted.
    """
    config = load_config(folder, trust)
    newest = Run(folder, primary=False).newest_checkpoint()
    if newest is None:
        raise LabError(f"{folder} has no checkpoint yet: let it train for a while")
    state = newest.content.get("state_dict") or {}
    own = {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
    return Trained(folder, newest.path, config, own, newest.step)


def _reset_softmax(model: nn.Module, fresh: nn.Module) -> None:
    """Gives rules and normalisers of ``model`` back what they start with, which the checkpoint overwrote."""
    for of_all in (rules_of, normalisers_of):
        for one, new in zip(of_all(model), of_all(fresh), strict=True):
            one.load_state_dict(new.state_dict())
