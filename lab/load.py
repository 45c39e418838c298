"""A trained model out of its run folder, under the softmax it was trained with or any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import nn

from lab.build import build_model
from lab.config import compose_config
from lab.errors import LabError
from lab.run import Run, load_checkpoint


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


def load_model(
    folder: Path, softmax: DictConfig | None = None, facts: dict[str, int] | None = None
) -> tuple[nn.Module, int]:
    """The model at the newest checkpoint of a run, in evaluation mode, and the steps it was trained for.

    Args:
        folder: a run folder.
        softmax: a composed ``softmax`` config to swap in; None takes the run's own.
        facts: the data's ``model_arguments()``, from who has the data at hand; None loads the data to ask it.

    Raises:
        LabError: if there is no run, no checkpoint, or the weights do not fit.
    """
    config = load_config(folder)
    own = (config.softmax if softmax is None else softmax).copy()
    with open_dict(own):
        own.pop("schedule", None)
    path, step, _ = Run(folder, primary=False).newest_checkpoint()
    if path is None:
        raise LabError(f"{folder} has no checkpoint yet: let it train for a while")
    if facts is None:
        facts = instantiate(config.data).model_arguments()
    model = build_model(config.model, own, facts)
    state = {
        k.removeprefix("model."): v for k, v in load_checkpoint(path)["state_dict"].items() if k.startswith("model.")
    }
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        told = ", ".join(f"{name}={value}" for name, value in facts.items())
        # Torch names the model first, then what does not fit.
        raise LabError(f"{path} does not fit data of {told}: {str(error).splitlines()[-1].strip()}") from error
    # Another softmax has temperatures of its own; everything else must fit.
    unfit = [name for name in (*missing, *unexpected) if softmax is None or ".rule." not in name]
    if unfit:
        raise LabError(f"{path} does not fit its config: {', '.join(unfit)}")
    if softmax is not None:
        _reset_temperatures(model, build_model(config.model, own, facts))
    return model.eval(), step


def softmax_config(name: str, *overrides: str) -> DictConfig:
    """``softmax=<name>`` with overrides, as on the command line."""
    config = compose_config([f"softmax={name}", *overrides])
    OmegaConf.resolve(config.softmax)
    return config.softmax


def _reset_temperatures(model: nn.Module, fresh: nn.Module) -> None:
    """Gives the rules of ``model`` back the temperatures that they start with, which the checkpoint overwrote."""
    rules: Any = zip(model.rules(), fresh.rules(), strict=True)  # type: ignore[operator]
    for rule, new in rules:
        rule.load_state_dict(new.state_dict())
