"""Looks into a trained model: any diagnostics, on a checkpoint, after the fact.

    python -m lab.inspect run=runs/reasoning/norm_softmax/seed=0 'diagnostics=[attention_entropy,linear_probes]'
    python -m lab.inspect run=... 'diagnostics=[linear_probes]' linear_probes.scenes=20000 'linear_probes.full=[z]'

Tables and pictures go to ``<run>/inspect/step_<n>``, or to ``out=``; what is there is kept unless ``force=true``.
Every file that is written is named, and small tables are printed. ``gradient_norms`` looks at training batches, the
others at the validation set; more scenes than the run validates on: ``data.validation_size=20000``. Further options:
``device=cuda``, ``threads=2``, ``softmax=adaptive_temperature`` (swapped in, nothing trained), ``--config-dir my``
(configs of one's own, ``my/callbacks/...``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.table import Table
from torch import nn

from lab.callbacks.diagnostics.base import Diagnostic
from lab.callbacks.diagnostics.gradient_norms import GradientNorms
from lab.config.compose import CONFIGS, check, compose_config, explain_key
from lab.config.overrides import problem_with
from lab.console import LabError, refusals, tables, tell
from lab.observation.gradients import Trained
from lab.observation.observe import Findings, observe
from lab.runs.files import write_json
from lab.runs.outcome import Ending
from lab.runs.provenance import provenance
from lab.training.load import load_config, read_trained, softmax_config
from lab.training.module import TwoStepModule

# What can be shown a checkpoint.
Look = Diagnostic | GradientNorms

_OWN = ("run", "out", "device", "threads", "softmax", "force", "diagnostics")

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

    Raises:
        LabError: if there is no such run or diagnostic, or an earlier look would be overwritten.
    """
    trained = load_config(run)
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
    data = instantiate(trained.data)
    newest = read_trained(run)
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
    try:
        where = torch.device(device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError) as error:
        raise LabError(f"device={device} cannot be used here: {str(error).splitlines()[0]}") from error
    tell(f"{run}: {step} steps; {', '.join(one.name for one in diagnostics)}")
    for one, findings in _found(diagnostics, _trained(trained, model.to(where), data, step), where):
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


def _trained(config: DictConfig, model: nn.Module, data: Any, step: int) -> Trained:
    """The checkpoint as training would go on with it, up to what interventions and schedules make of it."""
    optim = instantiate(config.optim, _convert_="all")
    module = TwoStepModule(model, optim, data.model_arguments()["num_classes"], seed=config.seed)
    module.to(next(model.parameters()).device)
    return Trained(module, data, step, config.trainer.precision, config.trainer.accumulate_grad_batches)


def _found(diagnostics: Sequence[Look], trained: Trained, device: torch.device) -> Iterator[tuple[Look, Findings]]:
    """What each found: those of validation scenes in one pass, then those of training steps."""
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
    if problem := problem_with(callbacks):
        raise LabError(problem)
    config = compose_config(callbacks)
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


def _parse(arguments: list[str]) -> dict[str, Any]:
    """Keyword arguments of :func:`inspect`, and ``threads``."""
    own: dict[str, str] = {}
    rest: list[str] = []
    data_options: dict[str, Any] = {}
    for argument in _with_config_dir(arguments):
        key, separator, value = argument.partition("=")
        if not separator:
            raise LabError(f"{argument!r} is no option: give name=value, as in run=runs/reasoning/softmax/seed=0")
        if key in _OWN:
            own[key] = value
        elif key.startswith("data."):
            data_options[key] = yaml.safe_load(value)
        elif key == "hydra.searchpath":
            rest.append(argument)
        else:
            rest.append(f"callbacks.{argument}")
    if "run" not in own or "diagnostics" not in own:
        raise LabError(
            "run= and diagnostics= are needed: python -m lab.inspect run=<folder> diagnostics=[attention_maps]"
        )
    try:
        named: Any = OverridesParser.create().parse_override(f"diagnostics={own['diagnostics']}").value()
    except HydraException as error:
        raise LabError(f"diagnostics={own['diagnostics']} cannot be read: {str(error).splitlines()[0]}") from error
    listed = [named] if isinstance(named, str) else list(named)
    return {
        "run": Path(own["run"]),
        "callbacks": [f"callbacks=[{','.join(map(str, listed))}]", *rest],
        "out": Path(own["out"]) if "out" in own else None,
        "device": own.get("device", "cuda" if torch.cuda.is_available() else "cpu"),
        "softmax": own.get("softmax"),
        "force": _flag("force", own.get("force", "false")),
        "threads": own.get("threads"),
        "data_options": data_options,
    }


def _with_config_dir(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments; ``--config-dir my``, as ``lab.train`` has it, as the override that means the same."""
    left = iter(arguments)
    for argument in left:
        flag, separator, value = argument.partition("=")
        if flag not in ("--config-dir", "-cd"):
            yield argument
            continue
        named = value if separator else next(left, "")
        if not named or not Path(named).is_dir():
            raise LabError(f"--config-dir {named} is no folder: name the one that holds callbacks/ or softmax/")
        yield f"hydra.searchpath=['file://{Path(named).absolute()}']"


def _usage() -> str:
    """What ``--help`` prints: the text above, and the diagnostics there are."""
    ready = [path.stem for path in sorted((CONFIGS / "callbacks").glob("*.yaml")) if _looks(path)]
    return f"{(__doc__ or '').replace('``', '').strip()}\n\ndiagnostics: {', '.join(ready)}"


def _looks(path: Path) -> bool:
    """Whether a callbacks config is that of something that can be shown scenes."""
    content = yaml.safe_load(path.read_text()) or {}
    return "scenes" in (content.get(path.stem) or {})


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise LabError(f"{name} must be true or false, got {value}")
    return value == "true"


def main() -> None:
    """The command line."""
    if any(argument in ("--help", "-h") for argument in sys.argv[1:]):
        print(_usage())
        return
    with refusals():
        arguments = _parse(sys.argv[1:])
        threads = arguments.pop("threads")
        if threads is not None:
            if not threads.isdigit() or not int(threads):
                raise LabError(f"threads must be a positive number, got {threads}")
            torch.set_num_threads(int(threads))
        with Ending().told():
            inspect(**arguments)


if __name__ == "__main__":
    main()
