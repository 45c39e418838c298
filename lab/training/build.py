"""Builds what a config names: model, data, callbacks, loggers, trainer. It knows none of them by name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Sequence
from typing import Any

import lightning as L
import torch
from hydra.errors import InstantiationException
from hydra.utils import get_class, get_object, instantiate
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf

from lab.attention.normalisers.softmax import Softmax
from lab.attention.rules.fixed import Fixed
from lab.attention.schedule import TauSchedule, check_schedule
from lab.callbacks.checkpoints import Checkpoints
from lab.callbacks.diagnostics.base import Diagnostic, Keeper
from lab.callbacks.eureka import EurekaMoment
from lab.callbacks.preemption import Preemption
from lab.config.check import HALF, no_half_on_a_cpu, takes
from lab.config.command_line import composed
from lab.console import LabError, blamed, cause_of, tell
from lab.datasets.contract import check_parts, facts_of
from lab.datasets.loading import IGNORED, DataModule
from lab.models.composed_softmax import softmax_factory
from lab.models.observable import normalisers_of, rules_of
from lab.runs.boards import check_installed
from lab.runs.checkpoints import AtomicCheckpointIO
from lab.runs.folder import CHECKPOINTS, Run
from lab.runs.metrics_log import MetricsLog
from lab.runs.spec import RunSpec, device_count
from lab.runs.tensorboard import hyperparameters
from lab.training.module import TwoStepModule
from lab.training.optim import OptimConfig
from lab.training.own_optim import check_own_optim

# Parameters such as *args and **options, which need no value.
_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def build_model_and_data(
    config: DictConfig, kind: type[TwoStepModule] = TwoStepModule, alike: DataModule | None = None
) -> tuple[TwoStepModule, DataModule]:
    """The module and the data of one seed, which fixes everything random in them.

    Args:
        config: of the run.
        kind: class of the module.
        alike: the same data with another seed, whose images are held once for both.
    """
    L.seed_everything(config.seed, workers=True, verbose=False)
    data = build_data(config.data)
    if alike is not None:
        data.share(alike)
    return build_module(config, data, kind), data


def build_data(data: DictConfig) -> DataModule:
    """The data module that a config names.

    Raises:
        LabError: if it names something else, or the data lack a part.
    """
    made = instantiate(data)
    if not isinstance(made, DataModule):
        raise LabError(f"data._target_={data._target_} is no data: derive it from lab.datasets.loading.DataModule")
    check_parts(made)
    return made


def build_optim(optim: DictConfig) -> OptimConfig:
    """The settings of optimiser and schedule that a config names.

    Raises:
        LabError: if it names something else.
    """
    made = instantiate(optim, _convert_="all")
    if not isinstance(made, OptimConfig):
        raise LabError(f"optim._target_={optim._target_} is no optimiser: name lab.training.optim.OptimConfig")
    return made


def build_options(config: DictConfig, overrides: Iterable[str] = ()) -> None:
    """Builds everything that is quick to build and discards it, so that options that do not fit fail before any work.

    Args:
        config: of the run.
        overrides: as typed.

    Raises:
        LabError: if the package of a logger is not installed, or its config makes it at once; if an optimiser of the
            user's own ignores an option that is typed.
    """
    for name, node in config.logger.items():
        if node:
            check_installed(str(name), get_class(node._target_))
            if not node.get("_partial_"):
                raise LabError(f"logger.{name} has no _partial_: true, with which the lab makes the logger of each run")
    check_own_optim(build_optim(config.optim), overrides, max(1, config.trainer.max_epochs or 1))
    build_callbacks(config)
    build_data(config.data)
    _schedule(config.softmax)
    if config.intervention:
        instantiate(config.intervention)


def build_module(config: DictConfig, data: DataModule, kind: type[TwoStepModule] = TwoStepModule) -> TwoStepModule:
    """The model with its softmax, in its LightningModule."""
    facts = facts_of(data)
    model = build_model(config.model, config.softmax, facts)
    if config.softmax.get("schedule"):
        if not rules_of(model):
            raise LabError(
                f"{config.model._target_} has no attention, so no temperature to schedule: leave softmax/schedule out"
            )
        if not all(normaliser.takes_temperature for normaliser in normalisers_of(model)):
            raise LabError(
                f"{config.softmax.normaliser._target_} has no temperature to heat: leave softmax/schedule out"
            )
    if config.intervention and not rules_of(model):
        raise LabError(
            f"{config.model._target_} has no attention whose gradients could be scaled: leave intervention out"
        )
    intervention = instantiate(config.intervention) if config.intervention else None
    if check := getattr(intervention, "check", None):
        check(model)
    return kind(
        model=model,
        optim=build_optim(config.optim),
        num_classes=facts["num_classes"],
        accuracies=data.accuracies,
        ignored=IGNORED if data.ignores else None,
        seed=config.seed,
        schedule=_schedule(config.softmax, {rule.default_tau for rule in rules_of(model)}),
        intervention=intervention,
    )


def _schedule(softmax: DictConfig, default_taus: Iterable[float] = (8.0,)) -> TauSchedule | None:
    """The schedule of tau, tried for rules of these tau; None where the softmax has none."""
    config = softmax.get("schedule")
    if not config:
        return None
    with blamed(f"softmax.schedule._target_={config._target_} fails"):
        schedule = instantiate(config)
        for tau in default_taus:
            check_schedule(schedule, tau)
    return schedule


def build_model(model: DictConfig, softmax: DictConfig, facts: dict[str, int]) -> torch.nn.Module:
    """A model with its softmax, for data described by ``facts``; a model without attention takes no softmax.

    Raises:
        LabError: if the data's facts do not fit the model, or a softmax is asked for that the model cannot take.
        ValueError: if the softmax does not work on queries and keys of the model's heads.
    """
    parameters = inspect.signature(get_class(model._target_)).parameters
    unknown = sorted(name for name in facts if not takes(parameters, name))
    if unknown:
        raise LabError(
            f"{model._target_} does not fit this data, which gives {', '.join(unknown)}: choose another model="
        )
    required = [name for name, one in parameters.items() if one.default is one.empty and one.kind not in _COLLECTING]
    if missing := [name for name in required if name not in facts and name not in model and name != "softmax"]:
        raise LabError(
            f"{model._target_} needs {', '.join(missing)}, which neither this data gives nor the config of the model: "
            "choose another model=, or give it a value"
        )
    normaliser = softmax.get("normaliser")
    plain = get_object(softmax._target_) is Fixed and softmax.get("tau") is None
    plain = plain and (not normaliser or get_object(normaliser._target_) is Softmax)
    # **options may go to a base class with a softmax, and whether one is used is known below.
    if takes(parameters, "softmax"):
        factory = softmax_factory(softmax)
        made = _module(instantiate(model, softmax=factory, **facts), model)
        if (layers := len(rules_of(made))) < factory.made:
            raise LabError(
                f"{model._target_} makes {factory.made} softmaxes, but has {layers} attention layers in its modules: "
                "keep layers in torch.nn.ModuleList, since those in a list are neither trained nor saved"
            )
        if not plain and not factory.made:
            raise LabError(
                f"{model._target_} takes a softmax and makes no rule of it, so softmax= would be ignored: let it make "
                "one for every layer, with lab.models.softmaxes.make_softmaxes(softmax, ...)"
            )
        return made
    if not plain:
        raise LabError(f"{model._target_} has no attention, so softmax= and its options cannot be used: leave them out")
    return _module(instantiate(model, **facts), model)


def _module(made: Any, model: DictConfig) -> torch.nn.Module:
    if not isinstance(made, torch.nn.Module):
        raise LabError(f"model._target_={model._target_} is no model: derive it from torch.nn.Module")
    return made


def build_callbacks(config: DictConfig) -> list[Callback]:
    """The callbacks that the config names.

    Raises:
        LabError: if it names something else, or a diagnostic without the parts of its base class.
    """
    made = {name: one for name, one in instantiate(config.callbacks).items() if one is not None}
    for name, one in made.items():
        target = config.callbacks[name]._target_
        if not isinstance(one, Callback):
            raise LabError(f"callbacks.{name}._target_={target} is no callback: derive it from Lightning's Callback")
        if isinstance(one, Keeper) and not hasattr(one, "table"):
            raise LabError(f"callbacks.{name}: {target} does not call super().__init__ with its folder and cadence")
        if isinstance(one, Keeper):
            one.key = str(name)
    return list(made.values())


def build_checkpoints(config: DictConfig, run: Run, preemption: Preemption) -> Checkpoints:
    """The callback that saves checkpoints into the run folder, also when a signal tells the run to end."""
    options: Any = OmegaConf.to_container(config.checkpoints, resolve=True)
    return Checkpoints(run.checkpoints, **options, preemption=preemption)


def build_loggers(spec: RunSpec, run: Run, resume_step: int) -> list[Logger]:
    """Makes the logger of ``metrics.csv`` and those that the config names, and logs the run's hyperparameters.

    Those of the config only in the first process of a run, which alone logs: several would make one database at once.
    """
    loggers: list[Logger] = [MetricsLog(run.metrics, resume_step)]
    for make in instantiate(spec.config.logger).values() if run.primary else ():
        if make is not None:
            # A resumed run logs the steps after its last checkpoint again: a logger that can purge its old rows does.
            takes_back = resume_step and "purge_step" in inspect.signature(make).parameters
            loggers.append(make(purge_step=resume_step) if takes_back else make())
    for logger in loggers:
        logger.log_hyperparams(hyperparameters(spec))
    return loggers


def build_trainer(spec: RunSpec, callbacks: Sequence[Callback], loggers: Sequence[Logger]) -> L.Trainer:
    """Makes Lightning's trainer; prints a note if no callback of the config looks for a Eureka-moment.

    Raises:
        LabError: if Lightning cannot make it of these options on this machine, or if several processes were started
            that would each train alone.
    """
    _tell_if_nobody_looks(spec)
    # Plain Python values: Lightning needs max_time as a dict, and a DictConfig is not one.
    try:
        trainer = instantiate(
            spec.config.trainer,
            _convert_="all",
            callbacks=list(callbacks),
            logger=list(loggers) or False,
            plugins=[AtomicCheckpointIO(spec.folder / CHECKPOINTS)],
        )
    except InstantiationException as error:
        # As where devices do not fit the accelerator, or a package for one is missing.
        if isinstance(error.__cause__, TypeError | ImportError):
            raise LabError(f"these options of trainer do not work here: {error.__cause__}") from cause_of(error)
        raise
    assert isinstance(trainer, L.Trainer)
    asked = spec.config.trainer
    if str(asked.precision) in HALF and trainer.precision != "16-mixed":
        # Lightning has taken bfloat16, since accelerator=auto has found no GPU.
        raise LabError(no_half_on_a_cpu(asked.precision))
    if device_count(asked) not in (None, trainer.num_devices):
        raise LabError(
            f"trainer.strategy={asked.strategy} trains on {trainer.num_devices}, not on trainer.devices={asked.devices}"
        )
    started = os.environ.get("WORLD_SIZE", "1") if "LOCAL_RANK" in os.environ else "1"
    if trainer.world_size == 1 and started != "1":
        raise LabError(
            f"{started} processes were started, as by torchrun, and each would train alone in this one folder: give "
            "trainer=ddp and trainer.devices, or start it without torchrun"
        )
    return trainer


def _tell_if_nobody_looks(spec: RunSpec) -> None:
    """Prints a note if no callback looks for a Eureka-moment.

    ``callbacks=<name>`` replaces the experiment's own callbacks: easily typed, and a whole sweep is lost.
    """
    classes = {name: get_object(node._target_) for name, node in spec.config.callbacks.items() if node}
    if any(inspect.isclass(one) and issubclass(one, EurekaMoment) for one in classes.values()):
        return
    looking = [str(name) for name, one in classes.items() if inspect.isclass(one) and issubclass(one, Diagnostic)]
    own = _own_callbacks(spec.experiment)
    kept = f"'callbacks=[{','.join([*own, *looking])}]' keeps them" if own else "name its own callbacks as well"
    tell("no Eureka-moment is looked for: callbacks= has replaced the experiment's own callbacks; " + kept)


def _own_callbacks(experiment: str | None) -> list[str]:
    """Returns the ``callbacks`` that an experiment of the lab chooses; [] for others."""
    try:
        chosen = composed([f"experiment={experiment}"] if experiment else ["~experiment"]).choices["callbacks"]
    except LabError:
        return []
    return [chosen] if chosen else []
