"""``python -m lab.train experiment=main_task``: compose, build, train, and leave a run folder behind.

A config names classes; this file builds them and knows none of them by name.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import hydra
import lightning as L
import torch
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from omegaconf import DictConfig, OmegaConf, open_dict

from callbacks.checkpoints import Checkpoints
from callbacks.finite_loss import FiniteLoss
from callbacks.run_summary import RunSummary
from lab import command
from lab.config import CONFIGS, check
from lab.errors import LabError
from lab.metrics_log import MetricsLog
from lab.module import TwoStepModule
from lab.provenance import provenance
from lab.run import Run, run_name


def run(overrides: list[str]) -> dict[str, Any]:
    """``python -m lab.train <overrides>`` from Python (a notebook, a script): the run's summary.

    Raises:
        LabError: for everything that a user can mend.
    """
    if problem := command.problem_with(overrides):
        raise LabError(problem)
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("train", overrides=overrides, return_hydra_config=True)
    choices = dict(config.hydra.runtime.choices)
    with open_dict(config):
        del config.hydra
    return train(config, overrides, choices)


def train(config: DictConfig, overrides: list[str], choices: dict[str, Any]) -> dict[str, Any]:
    """Trains what ``config`` describes, or goes on with it, or finds it finished.

    Args:
        config: composed by Hydra.
        overrides: as typed, for the name of the run folder.
        choices: group -> chosen config, as Hydra reports them.

    Returns:
        The run's summary.

    Raises:
        LabError: for everything that a user can mend.
    """
    name = run_name(str(choices.get("experiment") or "custom"), str(choices["softmax"]), config.seed, overrides)
    folder = Path(config.paths.runs).expanduser().absolute() / name
    config.paths.run = str(folder)
    check(config)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    primary = _is_primary()
    run = Run(folder, primary)
    try:
        if primary and config.force and (aside := run.set_aside()):
            _say(f"force=true: the run before is kept in {aside}")
        summary = run.read_summary()
        # Every process sees the same summary and leaves together; under force it is the old run's, or none.
        if summary.get("status") == "finished" and not config.force:
            _say(f"finished already: {run.folder} (force=true runs it again)")
            return summary
        origin = provenance()
        run.identify(config, origin)
        what = {
            "name": name,
            "experiment": choices.get("experiment"),
            "softmax": choices["softmax"],
            "seed": config.seed,
            "overrides": overrides,
            **origin,
        }
        _train_in(run, config, RunSummary(run.summary, what))
        return run.read_summary()
    finally:
        run.release()


def _train_in(run: Run, config: DictConfig, summary: RunSummary) -> None:
    """Trains in an open run folder and leaves a summary, however it ends."""
    trainer: L.Trainer | None = None
    status, reason = "failed", None
    try:
        resume, step, damaged = (None, 0, []) if config.force else run.newest_checkpoint()
        for path in damaged:
            _say(f"damaged checkpoint, using the one before it: {path}")
        if resume is not None:
            _say(f"going on from {resume}")
        L.seed_everything(config.seed, workers=True, verbose=False)
        data = instantiate(config.data)
        module = build_module(config, data)
        if config.compile:
            module.model.compile()
        trainer = build_trainer(run, config, summary, step)
        _say(f"run folder: {run.folder}")
        if "16" in str(config.trainer.precision) and config.trainer.accelerator == "cpu" and _emulates_16_bit():
            _say("this processor only emulates 16-bit arithmetic: trainer.precision=32-true is much faster here")
        trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
        status = "stopped" if trainer.interrupted else "finished"
    except (LabError, FileNotFoundError, ValueError, InstantiationException) as error:
        # What a constructor said, not that Hydra called it.
        cause = error.__cause__ if isinstance(error, InstantiationException) else error
        if not isinstance(cause, LabError | FileNotFoundError | ValueError):
            reason = f"{type(cause).__name__}: {cause}"
            raise
        reason = str(cause)
        raise LabError(reason) from error
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt | SystemExit) or type(error).__name__ == "SIGTERMException"
        status, reason = ("stopped", None) if stopped else ("failed", f"{type(error).__name__}: {error}")
        raise
    finally:
        summary.write(trainer, status, reason)


def build_module(config: DictConfig, data: L.LightningDataModule) -> TwoStepModule:
    """The model with its softmax, in its LightningModule."""
    facts: dict[str, int] = data.model_arguments()  # type: ignore[attr-defined]
    softmax = config.softmax.copy()
    with open_dict(softmax):
        schedule = softmax.pop("schedule", None)
    return TwoStepModule(
        model=instantiate(config.model, softmax=instantiate(softmax), **facts),
        optim=instantiate(config.optim, _convert_="all"),
        num_classes=facts["num_classes"],
        locations=getattr(data, "locations", ()),
        seed=config.seed,
        schedule=instantiate(schedule) if schedule else None,
    )


def build_trainer(run: Run, config: DictConfig, summary: RunSummary, resume_step: int) -> L.Trainer:
    """The trainer with its callbacks and loggers; checkpoints come last, by Lightning's order."""
    callbacks: list[Callback] = [FiniteLoss(), *instantiate(config.callbacks).values(), summary]
    callbacks.append(Checkpoints(run.checkpoints, **OmegaConf.to_container(config.checkpoints)))  # type: ignore[arg-type]
    loggers: list[Logger] = [MetricsLog(run.metrics, resume_step)]
    # A resumed run takes back what the killed one logged beyond its last checkpoint.
    purge = {"purge_step": resume_step} if resume_step else {}
    loggers += [make(**purge) for make in instantiate(config.logger).values()]
    trainer = instantiate(config.trainer, callbacks=callbacks, logger=loggers)
    assert isinstance(trainer, L.Trainer)
    return trainer


def report(summary: dict[str, Any]) -> str:
    """One line on how a run ended."""
    eureka = summary.get("eureka", {})
    moment = f"Eureka-moment at epoch {eureka['epoch']}" if eureka.get("happened") else "no Eureka-moment"
    accuracy = summary.get("metrics", {}).get("val/accuracy")
    value = f", validation accuracy {accuracy:.2%}" if accuracy is not None else ""
    return f"{summary.get('status')}: {moment}{value}, {summary.get('steps', 0)} steps"


def _emulates_16_bit() -> bool:
    """Whether this processor lacks 16-bit instructions, so that a matrix product is up to 200 times slower."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    return not supported()


def _is_primary() -> bool:
    """Whether this is the process that writes (rank 0)."""
    return int(getattr(rank_zero_only, "rank", 0) or 0) == 0


@rank_zero_only
def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
def _main(config: DictConfig) -> float | None:
    settings = HydraConfig.get()
    try:
        summary = train(config, list(settings.overrides.task), dict(settings.runtime.choices))
    except LabError as error:
        if os.environ.get("HYDRA_FULL_ERROR"):
            raise
        _say(f"error: {error}")
        sys.exit(1)
    if _is_primary():
        _say(report(summary))
    # What Hydra's sweepers optimise.
    return summary.get("metrics", {}).get("val/accuracy")


def main() -> None:
    """The command line."""
    command.check_overrides(sys.argv[1:])
    _main()


if __name__ == "__main__":
    main()
