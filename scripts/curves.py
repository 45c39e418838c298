"""Pictures of finished runs: accuracy curves with the plateau and moments, or gradient norms."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from lab.config.arguments import Parser
from lab.console import LabError, refusals
from lab.plotting.curves import accuracy_figure, gradient_figure
from lab.plotting.figures import png, save_as_asked
from lab.report.settings import head_and_options
from lab.runs.summary import FILE, Summary, load_summary
from lab.runs.walk import instead_of


def names(runs: Mapping[Path, Summary]) -> dict[str, Path]:
    """Maps legend names to run folders: softmax (or row) and seed, after the experiment where these differ.

    Runs that share both are told apart by the options that not all of them were given, which all runs then show, and by
    their paths where that is not enough.
    """
    told_of = {folder: head_and_options(one) for folder, one in runs.items()}
    named = {folder: f"{head}, seed {runs[folder].seed}" for folder, (head, _) in told_of.items()}
    if len({one.experiment for one in runs.values()}) > 1:
        named = {folder: f"{runs[folder].experiment or 'custom'}: {name}" for folder, name in named.items()}
    telling: set[str] = set()
    for twins in _twins(named):
        often = Counter((key, one.name) for folder in twins for key, one in told_of[folder][1].items())
        telling.update(key for (key, _), count in often.items() if count < len(twins))
    for folder, (_, options) in told_of.items():
        named[folder] = ", ".join([named[folder], *(one.name for key, one in options.items() if key in telling)])
    if twice := [folder for twins in _twins(named) for folder in twins]:
        root = os.path.commonpath([folder.absolute() for folder in twice])
        named |= {folder: os.path.relpath(folder, root) for folder in twice}
    return {name: folder for folder, name in named.items()}


def _twins(named: Mapping[Path, str]) -> list[list[Path]]:
    """The folders of each name that several have."""
    often = Counter(named.values())
    return [[folder for folder in named if named[folder] == name] for name in often if often[name] > 1]


def drawn(folders: list[Path], gradients: bool) -> Figure:
    """Accuracy curves of runs, or the gradient norms of one.

    Raises:
        LabError: if a folder holds no run, or nothing that could be drawn.
    """
    summaries = {}
    for folder in folders:
        if folder.is_dir() and not (folder / FILE).exists():
            raise LabError(f"{folder} holds no run: {instead_of(folder, FILE)}")
        summaries[folder] = load_summary(folder)
    try:
        if gradients:
            return gradient_figure(folders[0])
        experiments = {one.experiment or "" for one in summaries.values()}
        return accuracy_figure(names(summaries), title=experiments.pop() if len(experiments) == 1 else "")
    except ValueError as error:
        raise LabError(str(error)) from error


def main() -> None:
    """The command line."""
    parser = Parser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders (each holds a summary.json)")
    parser.add_argument("--out", type=png, required=True, help="PNG file to write; a PDF comes beside it")
    parser.add_argument("--gradients", action="store_true", help="gradient norms of one run, layer by layer")
    arguments = parser.parse_args()
    if arguments.gradients and len(arguments.runs) > 1:
        parser.error("--gradients draws one run")
    once = {run.resolve(): run for run in arguments.runs}
    with refusals():
        save_as_asked(drawn([*once.values()], arguments.gradients), arguments.out)


if __name__ == "__main__":
    main()
