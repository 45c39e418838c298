"""Pictures of finished runs: accuracy curves with the plateau and moments, or gradient norms."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from lab.plotting.curves import accuracy_figure, gradient_figure
from lab.plotting.figures import png, save_figure
from lab.runs.files import DamagedFile
from lab.runs.summary import Summary, load_summary


def names(runs: Mapping[Path, Summary]) -> dict[str, Path]:
    """Run folders by a name in a legend: softmax and seed, of runs that differ in more the folder, too."""
    plain = {folder: f"{one.softmax}, seed {one.seed}" for folder, one in runs.items()}
    twice = {name for name, count in Counter(plain.values()).items() if count > 1}
    return {name if name not in twice else str(folder): folder for folder, name in plain.items()}


def main() -> int:
    """The command line; 1 if a folder holds no run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders (each holds a summary.json)")
    parser.add_argument("--out", type=png, required=True, help="PNG file to write; a PDF comes beside it")
    parser.add_argument("--gradients", action="store_true", help="gradient norms of the first run, layer by layer")
    arguments = parser.parse_args()
    summaries = {}
    for folder in arguments.runs:
        try:
            summaries[folder] = load_summary(folder)
        except DamagedFile as error:
            print(f"error: {folder} holds no run: {error.short}", file=sys.stderr)
            return 1
    if arguments.gradients:
        figure = gradient_figure(arguments.runs[0])
    else:
        experiments = {one.experiment or "" for one in summaries.values()}
        figure = accuracy_figure(names(summaries), title=experiments.pop() if len(experiments) == 1 else "")
    for path in save_figure(figure, arguments.out, pdf=True):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
