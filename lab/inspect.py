"""Looks into a trained model: any diagnostics, on a checkpoint, after the fact.

    python -m lab.inspect run=runs/reasoning/norm_softmax/seed=0 'diagnostics=[attention_entropy,linear_probes]'
    python -m lab.inspect run=... 'diagnostics=[linear_probes]' linear_probes.scenes=20000 'linear_probes.full=[z]'

Tables and pictures go to ``<run>/inspect/step_<n>``, or to ``out=``; what is there is kept unless ``force=true``.
Every file that is written is named, and small tables are printed. ``gradient_norms`` looks at training batches, the
others at the validation set; more scenes than the run validates on: ``data.validation_size=20000``. Further options:
``device=cuda``, ``threads=2``, ``softmax=log_length softmax.form=log_n`` (swapped in, nothing trained),
``--config-dir my`` (configs of one's own, ``my/callbacks/...``), ``trust=my_rules`` (modules that the run's
``config.yaml`` may name beside the lab's: what it says is data, which somebody else may have written).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from lab.config.compose import CONFIGS
from lab.config.overrides import read_override
from lab.console import MOST_THREADS, LabError, import_from_here, refusals
from lab.runs.outcome import Ending
from lab.training.inspection import inspect

_OWN = ("run", "out", "device", "threads", "softmax", "force", "diagnostics", "trust")


def _parse(arguments: list[str]) -> dict[str, Any]:
    """Keyword arguments of :func:`inspect`, and ``threads``."""
    own: dict[str, str] = {}
    rest: list[str] = []
    data_options: dict[str, Any] = {}
    of_softmax: list[str] = []
    for argument in _with_config_dir(arguments):
        key, separator, value = argument.partition("=")
        if not separator:
            raise LabError(f"{argument!r} is no option: give name=value, as in run=runs/reasoning/softmax/seed=0")
        if key in _OWN:
            own[key] = value
        elif key.startswith("data."):
            data_options[key] = read_override(argument).parsed()
        elif key.startswith(("softmax.", "softmax/")):
            of_softmax.append(argument)
        elif key == "hydra.searchpath":
            rest.append(argument)
        else:
            rest.append(f"callbacks.{argument}")
    if "run" not in own or "diagnostics" not in own:
        raise LabError(
            "run= and diagnostics= are needed: python -m lab.inspect run=<folder> diagnostics=[attention_maps]"
        )
    if of_softmax and "softmax" not in own:
        raise LabError(f"{of_softmax[0]} needs softmax=<name>, the softmax to swap in")
    named = read_override(f"diagnostics={own['diagnostics']}").parsed()
    listed = [named] if isinstance(named, str) else named
    if not listed or not isinstance(listed, list):
        raise LabError(
            f"diagnostics={own['diagnostics']} names none: give some, as diagnostics=[attention_entropy,linear_probes]"
        )
    return {
        "run": Path(own["run"]),
        "callbacks": [f"callbacks=[{','.join(map(str, listed))}]", *rest],
        "out": Path(own["out"]) if "out" in own else None,
        "device": own.get("device", "cuda" if torch.cuda.is_available() else "cpu"),
        "softmax": own.get("softmax"),
        "softmax_options": of_softmax,
        "force": _flag("force", own.get("force", "false")),
        "threads": own.get("threads"),
        "data_options": data_options,
        "trust": [name for name in own.get("trust", "").strip("[]").split(",") if name],
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
    """Returns what ``--help`` prints: the text above, and the diagnostics there are."""
    ready = [path.stem for path in sorted((CONFIGS / "callbacks").glob("*.yaml")) if _looks(path)]
    return f"{(__doc__ or '').replace('``', '').strip()}\n\ndiagnostics: {', '.join(ready)}"


def _looks(path: Path) -> bool:
    """Tells whether a callbacks config is of a diagnostic, which can be shown scenes."""
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
    import_from_here()
    with refusals():
        arguments = _parse(sys.argv[1:])
        threads = arguments.pop("threads")
        if threads is not None:
            if not threads.isdigit() or not 1 <= int(threads) <= MOST_THREADS:
                raise LabError(f"threads must be a number from 1 to {MOST_THREADS}, got {threads}")
            torch.set_num_threads(int(threads))
        with Ending().told():
            inspect(**arguments)


if __name__ == "__main__":
    main()
