"""Pictures of finished runs: accuracy curves with the plateau and moments, or gradient norms."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lab.plotting.curves import accuracy_figure, gradient_figure
from lab.plotting.figures import save_figure
from lab.runs.files import DamagedFile
from lab.runs.summary import load_summary


def main() -> int:
    """The command line; 1 if a folder holds no run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders (each holds a summary.json)")
    parser.add_argument("--out", type=Path, required=True, help="PNG file to write; a PDF comes beside it")
    parser.add_argument("--gradients", action="store_true", help="gradient norms of the first run, layer by layer")
    arguments = parser.parse_args()
    summaries = {}
    for folder in arguments.runs:
        try:
            summaries[folder] = load_summary(folder)
        except DamagedFile as error:
            print(f"error: {folder} holds no run: {error.short}", file=sys.stderr)
            return 1
    first = summaries[arguments.runs[0]]
    if arguments.gradients:
        figure = gradient_figure(arguments.runs[0])
    else:
        named = {f"{one.softmax}, seed {one.seed}": folder for folder, one in summaries.items()}
        figure = accuracy_figure(named, title=first.experiment or "")
    for path in save_figure(figure, arguments.out, pdf=True):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
