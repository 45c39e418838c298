"""A softmax by its name: composes ``softmax=`` as the command line does, and makes rules and normalisers of it."""

from __future__ import annotations

from typing import Any

from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from lab.attention.normalisers.softmax import Softmax
from lab.config.check import check, check_partial
from lab.config.command_line import composed
from lab.config.overrides import one_value
from lab.console import LabError
from lab.models.softmaxes import SoftmaxFactory


def softmax_config(name: str, *overrides: str) -> DictConfig:
    """``softmax=<name>`` with overrides, as on the command line.

    Raises:
        LabError: if the overrides do not compose, or one of them is wrong or has several values.
    """
    typed = [f"softmax={name}", *overrides]
    for one in typed:
        one_value(one)
    config = composed(typed).config
    OmegaConf.resolve(config.softmax)
    check(OmegaConf.create({"softmax": config.softmax}))
    return config.softmax


def refuse_schedule(softmax: DictConfig, name: str) -> None:
    """Raises LabError if a softmax that is put on a trained model has a schedule: there is no training to move it."""
    if softmax.get("schedule"):
        raise LabError(
            f"{name} moves its temperature over training, and this model is trained already: leave the schedule out "
            "(softmax/schedule=none), and type a temperature, as in softmax.tau=2"
        )


def softmax_factory(softmax: DictConfig) -> SoftmaxFactory:
    """Makes the factory of a layer's rule and normaliser from a ``softmax`` config; its schedule is for training."""
    rule: Any = OmegaConf.to_container(softmax, resolve=True)
    rule.pop("schedule", None)
    normaliser = rule.pop("normaliser", None)
    for part, name in ((rule, "softmax"), (normaliser, "softmax.normaliser")):
        if part:
            check_partial(name, part, get_object(part["_target_"]))
    return SoftmaxFactory(instantiate(rule), instantiate(normaliser) if normaliser else Softmax)
