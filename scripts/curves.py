"""Pictures of finished runs: accuracy curves with the plateau and moments, or gradient norms."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from lab.console import LabError, refusals
from lab.plotting.curves import accuracy_figure, gradient_figure
from lab.plotting.figures import png, save_as_asked
from lab.runs.files import DamagedFile
from lab.runs.summary import Summary, load_summary


def names(runs: Mapping[Path, Summary]) -> dict[str, Path]:
    """Maps legend names to run folders: softmax and seed, or the relative path where several runs share both."""
    plain = {folder: f"{one.softmax}, seed {one.seed}" for folder, one in runs.items()}
    twice = [folder for folder, name in plain.items() if Counter(plain.values())[name] > 1]
    common = os.path.commonpath([folder.absolute() for folder in twice]) if twice else ""
    return {os.path.relpath(folder, common) if folder in twice else name: folder for folder, name in plain.items()}


def drawn(folders: list[Path], gradients: bool) -> Figure:
    """Accuracy curves of runs, or the gradient norms of one.

    Raises:
        LabError: if a folder holds no run, or nothing that could be drawn.
    """
    summaries = {}
    for folder in folders:
        try:
            summaries[folder] = load_summary(folder)
        except DamagedFile as error:
            raise LabError(f"{folder} holds no run: {error.short}") from error
    try:
        if gradients:
            return gradient_figure(folders[0])
        experiments = {one.experiment or "" for one in summaries.values()}
        return accuracy_figure(names(summaries), title=experiments.pop() if len(experiments) == 1 else "")
    except ValueError as error:
        raise LabError(str(error)) from error


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders (each holds a summary.json)")
    parser.add_argument("--out", type=png, required=True, help="PNG file to write; a PDF comes beside it")
    parser.add_argument("--gradients", action="store_true", help="gradient norms of one run, layer by layer")
    arguments = parser.parse_args()
    if arguments.gradients and len(arguments.runs) > 1:
        parser.error("--gradients draws one run")
    with refusals():
        save_as_asked(drawn(arguments.runs, arguments.gradients), arguments.out)


if __name__ == "__main__":
    main()
