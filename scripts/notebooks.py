"""Runs the notebooks of docs/notebooks from top to bottom, and keeps their outputs for the site.

    make demo                      # the first notebook looks at its runs
    python -m scripts.notebooks    # trains what is missing below runs/, which takes some minutes

Output on stderr is left out: it holds paths of this machine and the progress of runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from lab.config.arguments import Parser
from lab.config.overrides import quoted
from lab.console import LabError, refusals
from lab.train import run

NOTEBOOKS = Path(__file__).resolve().parent.parent / "docs" / "notebooks"
# Softmaxes whose runs the notebooks read: those of the three commands on the first page.
ASKED = ("softmax=norm_softmax", "softmax=softmax")


def execute(path: Path, folder: Path) -> None:
    """Runs a notebook in ``folder``, and writes it with its outputs."""
    book = nbformat.read(path, as_version=4)
    NotebookClient(book, timeout=1800, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
            cell.metadata.pop("execution", None)  # when it ran, to the microsecond
    book.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(book, path)
    print(f"run: {path.name}")


def main(arguments: argparse.Namespace) -> None:
    """Trains what is missing, then runs the notebooks."""
    runs = arguments.folder / "runs"
    if not (runs / "demo").is_dir():
        raise LabError(f"{runs / 'demo'} is missing: `make demo` makes it")
    for softmax in ASKED:
        run(["experiment=reasoning_small", softmax, "seeds=5", f"paths.runs={quoted(runs)}"])
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        execute(path, arguments.folder)


if __name__ == "__main__":
    parser = Parser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(), help="folder that holds runs/; default: this one")
    with refusals():
        main(parser.parse_args())
