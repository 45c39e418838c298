"""Pictures of finished runs: accuracy curves with the plateau and moments, or gradient norms."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lab.plotting.curves import accuracy_figure, gradient_figure
from lab.plotting.figures import save_figure
from lab.runs.folder import read_summary


def main() -> int:
    """The command line; 1 if a folder holds no run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders (each holds a summary.json)")
    parser.add_argument("--out", type=Path, required=True, help="PNG file to write")
    parser.add_argument("--gradients", action="store_true", help="gradient norms of the first run, layer by layer")
    arguments = parser.parse_args()
    summaries = {folder: read_summary(folder) for folder in arguments.runs}
    for folder, summary in summaries.items():
        if not summary:
            print(f"{folder} holds no run: it has no readable summary.json", file=sys.stderr)
            return 1
    first = summaries[arguments.runs[0]]
    if arguments.gradients:
        figure = gradient_figure(arguments.runs[0])
    else:
        named = {f"{s['softmax']}, seed {s['seed']}": folder for folder, s in summaries.items()}
        figure = accuracy_figure(named, title=str(first["experiment"]))
    save_figure(figure, arguments.out)
    print(arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
