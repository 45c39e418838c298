"""Shows a trained model to diagnostics: tables and pictures of a checkpoint, after training."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import nn

from lab.callbacks.diagnostics.base import Diagnostic
from lab.config.check import check
from lab.config.suggestions import explain_key
from lab.console import LabError, cause_of, tell
from lab.datasets.loading import DataModule
from lab.datasets.text.data import CausalLanguageData, TextData
from lab.datasets.text.given import TOKENIZER
from lab.files import as_path
from lab.models.composed_softmax import softmax_config
from lab.observation.gradients import TrainingState
from lab.observation.subject import Subject
from lab.runs.spec import folder_name
from lab.training.build import build_data, build_optim
from lab.training.load import Trained, read_trained
from lab.training.looks import Looks, device_named, typed_softmax
from lab.training.module import TwoStepModule
from lab.training.optim import OptimConfig
from lab.training.stored import made_of


def inspect(
    run: str | Path,
    callbacks: list[str],
    out: str | Path | None = None,
    device: str = "cpu",
    softmax: str | None = None,
    softmax_options: Sequence[str] = (),
    force: bool = False,
    data_options: dict[str, Any] | None = None,
    trust: Sequence[str] = (),
    checkpoint: int | Literal["best"] | None = None,
) -> Path:
    """Shows a checkpoint of a run to diagnostics; returns the folder with their tables and pictures.

        inspect("runs/reasoning/norm_softmax/seed=0", ["callbacks=[attention_entropy,linear_probes]"])

    Args:
        run: a run folder.
        callbacks: overrides of ``configs/train.yaml`` that choose and configure the diagnostics, or name a folder with
            more configs (``hydra.searchpath``).
        out: where to write; None is a folder below ``inspect`` in the run folder.
        device: where to compute.
        softmax: softmax config to swap in; None keeps the run's own.
        softmax_options: overrides of that config, as in ``softmax.form=log_n``.
        force: overwrite the files of an earlier look.
        data_options: changes of the run's data, by key (``data.validation_size``).
        trust: modules that the run's config may name beside the lab's; others are refused, as anybody may have
            written the config.
        checkpoint: its steps, or ``"best"``; None is the newest intact one.

    Raises:
        LabError: if there is no such run, checkpoint or diagnostic, the run's config names something that is not
            trusted, or an earlier look would be overwritten.
    """
    typed = typed_softmax(softmax, softmax_options)
    listed = isinstance(callbacks, Sequence) and all(isinstance(one, str) for one in callbacks)
    if not listed or isinstance(callbacks, str) or not any(one.startswith("callbacks=") for one in callbacks):
        raise LabError(
            f"no diagnostics: give a list, such as ['callbacks=[attention_entropy]'], instead of {callbacks!r}"
        )
    if not isinstance(data_options, Mapping | None):
        raise LabError(f"data_options are a dict, as {{'data.validation_size': 5000}}, got {data_options!r}")
    run = as_path(run, "inspect('runs/reasoning/softmax/seed=0', ['callbacks=[attention_entropy]'])")
    where = device_named(device)
    trained = read_trained(run, trust, checkpoint)
    config = deepcopy(trained.config)
    OmegaConf.set_struct(config, True)
    for key, value in (data_options or {}).items():
        try:
            OmegaConf.update(config, key, value, merge=False)
        except OmegaConfBaseException as error:
            raise LabError(explain_key(config, key)) from cause_of(error)
    check(config)
    elsewhere = [override for override in callbacks if override.startswith("hydra.searchpath=")]
    options = (*elsewhere, *trained.softmax_defaults(), *softmax_options)
    swapped = None if softmax is None else softmax_config(softmax, *options)
    with made_of(run):
        data, optim = build_data(config.data), build_optim(config.optim)
    if isinstance(data, TextData):
        _check_text(run, data, data_options or {})
    model, step = trained.model(swapped, data.model_arguments()), trained.step
    swapped_in = " ".join(typed).removeprefix("softmax=") or None
    name = folder_name(",".join([f"step_{step:09d}", *typed]))
    looks = Looks(callbacks, out or run / "inspect" / name, force)
    text = isinstance(data, CausalLanguageData)
    looks.check_needs({"scenes", "training", "labels", *(["text"] if text else [])}, f"the run {run}")
    data.setup("fit")
    _check_same(trained, data, data_options or {})
    tell(f"{run}: {step} steps; {', '.join(looks.names)}")
    state = _state(config, model.to(where), data, optim, step)
    subject = Subject(state.module.model, state)
    if isinstance(data, CausalLanguageData):
        subject = Subject(state.module.model, state, data.tokens.encode, data.block)
    more = "validation_size" in config.data and "corpus" not in config.data
    for one, findings in looks.found(subject, data, where, partial(_tell_too_few, more)):
        looks.keep(one, findings, {"run": str(run), "step": step, "softmax": swapped_in}, step)
    return looks.folder


# Options of data that change how many samples there are and in what order, but not what they are made of.
_SAME_DATA = ("batch_size", "epoch_size", "validation_size", "seed", "validation_seed", "block", "share", "workers")


def _check_same(trained: Trained, data: DataModule, typed: Collection[str]) -> None:
    """Checks that the data are those of the run, unless an option is typed that may name others on purpose.

    Raises:
        LabError: if they are not.
    """
    if not typed:
        trained.check_data(data)
    elif all(key in {f"data.{name}" for name in _SAME_DATA} for key in typed):
        trained.data()  # whose first batches are those of the run


def _check_text(run: Path, data: TextData, typed: Collection[str]) -> None:
    """Refuses options with which the model would read tokens that mean something else, or that would do nothing.

    Raises:
        LabError: if there is one.
    """
    other = next((key for key in typed if key == "data.corpus" or key.startswith("data.corpus.")), None)
    if data.tokenizer is None and other is not None:
        raise LabError(
            f"{other} cannot be changed: {run} is of an older version and holds no {TOKENIZER}, and a tokeniser of "
            f"other texts gives tokens that mean other words; add data.tokenizer=<{TOKENIZER}> if you have the run's"
        )
    if data.tokenizer is not None and "data.vocabulary" in typed:
        raise LabError(f"data.vocabulary does nothing beside data.tokenizer={data.tokenizer}: leave it out")


def _state(config: DictConfig, model: nn.Module, data: DataModule, optim: OptimConfig, step: int) -> TrainingState:
    """The checkpoint as training would go on from it, but without intervention and temperature schedule."""
    module = TwoStepModule(model, optim, data.model_arguments()["num_classes"], seed=config.seed)
    module.to(next(model.parameters()).device)
    trainer = config.trainer
    return TrainingState(
        module, data, step, trainer.precision, trainer.accumulate_grad_batches, trainer.limit_train_batches
    )


def _tell_too_few(more: bool, asking: Diagnostic, there: int) -> None:
    what = f"data.validation_size={asking.scenes} draws more" if more else "all of them are looked at"
    tell(f"{asking.name} asks for {asking.scenes:,} scenes, but the validation set has {there:,}: {what}")
