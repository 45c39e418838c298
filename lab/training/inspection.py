"""Shows a trained model to diagnostics: tables and pictures of a checkpoint, after the fact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.table import Table
from torch import nn

from lab.callbacks.diagnostics.base import Diagnostic
from lab.callbacks.diagnostics.gradient_norms import GradientNorms
from lab.config.check import check, explain_key
from lab.config.command_line import composed
from lab.console import LabError, tables, tell
from lab.datasets.loading import DataModule
from lab.models.composed_softmax import softmax_config
from lab.observation.gradients import Trained
from lab.observation.observe import Findings, observe
from lab.runs.files import write_json
from lab.runs.provenance import provenance
from lab.training.build import build_data, build_optim
from lab.training.load import read_trained
from lab.training.module import TwoStepModule
from lab.training.optim import OptimConfig
from lab.training.stored import load_config, made_of

# What can be shown a checkpoint.
Look = Diagnostic | GradientNorms

# Larger tables are for a reader of files.
_MOST_ROWS, _MOST_COLUMNS = 30, 12


def inspect(
    run: Path,
    callbacks: list[str],
    out: Path | None = None,
    device: str = "cpu",
    softmax: str | None = None,
    force: bool = False,
    data_options: dict[str, Any] | None = None,
    trust: Sequence[str] = (),
) -> Path:
    """Shows a run's newest checkpoint to diagnostics; the folder that tables and pictures were written to.

    Args:
        run: a run folder.
        callbacks: overrides of ``configs/train.yaml`` that name and set the diagnostics, or say where more configs are
            (``hydra.searchpath``).
        out: where to write; None is a folder of the run's own.
        device: where to compute.
        softmax: a softmax config to swap in.
        force: replace what an earlier look wrote.
        data_options: changes of the run's data, by key (``data.validation_size``).
        trust: modules that the run's config may name, beside the lab's: it is data, and anybody may have written it.

    Raises:
        LabError: if there is no such run or diagnostic, its config names what is not trusted, or an earlier look would
            be overwritten.
    """
    if out is not None and out.exists() and not out.is_dir():
        raise LabError(f"out={out} is a file: name a folder for tables and pictures")
    try:
        where = torch.device(device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError) as error:
        raise LabError(f"device={device} cannot be used here: {str(error).splitlines()[0]}") from error
    trained = load_config(run, trust)
    OmegaConf.set_struct(trained, True)
    for key, value in (data_options or {}).items():
        try:
            OmegaConf.update(trained, key, value, merge=False)
        except OmegaConfBaseException as error:
            raise LabError(explain_key(trained, key)) from error
    check(trained)
    # The experiment's own defaults for NormSoftmax.
    of_experiment = [f"+norm_softmax.{key}={value}" for key, value in trained.get("norm_softmax", {}).items()]
    elsewhere = [override for override in callbacks if override.startswith("hydra.searchpath=")]
    swapped = None if softmax is None else softmax_config(softmax, *elsewhere, *of_experiment)
    with made_of(run):
        data, optim = build_data(trained.data), build_optim(trained.optim)
    newest = read_trained(run, trust)
    model, step = newest.model(swapped, data.model_arguments()), newest.step
    name = f"step_{step:09d}" if softmax is None else f"step_{step:09d},softmax={softmax}"
    folder = out or run / "inspect" / name
    settings = _settings(callbacks, folder)
    diagnostics = _diagnostics(settings)
    plain: Any = OmegaConf.to_container(settings, resolve=True)
    options = dict(zip([one.name for one in diagnostics], plain.values(), strict=True))
    if len(options) < len(diagnostics):
        raise LabError("two diagnostics of one kind would write one file: look with one after the other")
    for one in diagnostics:
        if ((folder / f"{one.name}.json").exists() or one.path.exists()) and not force:
            raise LabError(
                f"{folder} holds a look of {one.name} already: give force=true to look again, or another folder as out="
            )
    data.setup("fit")
    tell(f"{run}: {step} steps; {', '.join(one.name for one in diagnostics)}")
    for one, findings in _found(diagnostics, _trained(trained, model.to(where), data, optim, step), where):
        one.keep(findings, epoch=None, step=step)
        written = [one.path] if findings.rows else []
        arrays = one.keep_arrays(findings, "arrays")
        written += [] if arrays is None else [arrays]
        written += [one.draw(make(), name) for name, make in findings.figures.items()]
        settings_of_it = folder / f"{one.name}.json"
        write_json(
            settings_of_it,
            {"run": str(run), "step": step, "softmax": softmax, "options": options[one.name], **provenance()},
        )
        _show(one.name, findings)
        for path in [*written, settings_of_it]:
            tell(f"written: {path}")
    return folder


def _show(name: str, findings: Findings) -> None:
    """Prints a small table of what was found."""
    columns = list(dict.fromkeys(column for row in findings.rows for column in row))
    if not 0 < len(findings.rows) <= _MOST_ROWS or len(columns) > _MOST_COLUMNS:
        return
    table = Table(title=name, title_justify="left")
    for column in columns:
        named = any(isinstance(row.get(column), str) for row in findings.rows)
        table.add_column(column, justify="left" if named else "right")
    for row in findings.rows:
        values = [row.get(column, "") for column in columns]
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values))
    tables().print(table)


def _trained(config: DictConfig, model: nn.Module, data: DataModule, optim: OptimConfig, step: int) -> Trained:
    """The checkpoint as training would go on with it, up to what interventions and schedules make of it."""
    module = TwoStepModule(model, optim, data.model_arguments()["num_classes"], seed=config.seed)
    module.to(next(model.parameters()).device)
    return Trained(module, data, step, config.trainer.precision, config.trainer.accumulate_grad_batches)


def _found(diagnostics: Sequence[Look], trained: Trained, device: torch.device) -> Iterator[tuple[Look, Findings]]:
    """Findings of each: of validation scenes in one pass, then of training steps."""
    shared = [one for one in diagnostics if isinstance(one, Diagnostic)]
    if shared:
        model: Any = trained.module.model
        yield from zip(shared, observe(model, trained.data, shared, device, too_few=_tell_too_few), strict=True)
    for one in diagnostics:
        if isinstance(one, GradientNorms):
            yield one, one.look(trained)


def _tell_too_few(wanted: int, there: int) -> None:
    tell(f"{wanted:,} scenes are asked for, the validation set has {there:,}: data.validation_size={wanted} draws more")


def _settings(callbacks: list[str], folder: Path) -> DictConfig:
    config = composed(callbacks).config
    config.paths.run = str(folder)
    check(config)
    return config.callbacks


def _diagnostics(settings: DictConfig) -> list[Look]:
    try:
        made = {name: instantiate(node) for name, node in settings.items()}
    except InstantiationException as error:
        # What the constructor said, not that Hydra called it.
        raise LabError(str(error.__cause__ or error)) from error
    others = [str(name) for name, one in made.items() if not isinstance(one, Look)]
    if others:
        raise LabError(f"{', '.join(others)} watches training and cannot look at a checkpoint: leave it out")
    if not made:
        raise LabError("no diagnostics: name some, as in diagnostics=[attention_entropy,linear_probes]")
    return list(made.values())
