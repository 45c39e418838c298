"""Proves that a change leaves training as it was: five short runs, and a digest of the weights each ends with.

    python -m scripts.golden                     # the digests of this tree
    python -m scripts.golden --against HEAD~1    # also those of a commit; exit status 1 where one differs

The runs are of different tasks and softmaxes; one trains three seeds together and one is killed and resumed. Digests
depend on the machine and the version of torch: only those of one call can be compared.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent

_DRAWN = (
    "data/source=drawn",
    *(f"data.source.{kind}.{split}_size=200" for kind in ("digits", "garments") for split in ("train", "test")),
    "data.batch_size=16",
    "data.epoch_size=64",
    "data.validation_size=40",
    "trainer.max_epochs=3",
)
# Set explicitly, because the default has changed: both checkouts then train the same.
_REASONING = ("experiment=reasoning", "model.layer_norm=false")
RUNS: dict[str, tuple[str, ...]] = {
    "main task": (
        "experiment=main_task",
        "softmax=norm_softmax_heat_treatment",
        "data.tile_size=8",
        "model.depth=2",
        "model.head_dim=8",
        "optim.warmup_epochs=1",
        *_DRAWN,
    ),
    "reasoning, three seeds": (*_REASONING, "softmax=norm_softmax", "seeds=3", "trainer.max_epochs=40"),
    "max retrieval": (
        "experiment=max_retrieval",
        "softmax=learnable_temperature",
        "trainer.max_epochs=1",
        "trainer.max_steps=60",
    ),
    "small main task": ("experiment=main_task_small", "softmax=norm_softmax", *_DRAWN),
    "killed and resumed": (
        *_REASONING,
        "softmax=heat_treatment",
        "seed=5",
        "trainer.max_epochs=150",
        "checkpoints.every_n_steps=10",
    ),
}
KILLED = "killed and resumed"


def digests(tree: Path) -> dict[str, str]:
    """Trains with the code of a checkout and returns run -> digest of the weights in its newest checkpoint.

    Raises:
        SystemExit: if a run fails.
    """
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, overrides in RUNS.items():
            runs = Path(folder) / name.replace(" ", "_").replace(",", "")
            command = [sys.executable, "-m", "lab.train", *overrides, f"paths.runs={runs}", "threads=1"]
            if name == KILLED:
                _kill_after_a_checkpoint(command, tree, runs)
            done = subprocess.run(command, cwd=tree, env=_environment(tree), capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{name} failed in {tree}:\n{done.stderr[-3000:]}")
            for run in sorted(path.parent for path in runs.rglob("config.yaml")):
                found[f"{name}: {run.name}"] = _digest(sorted(run.glob("checkpoints/last-*.ckpt"))[-1])
    return found


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}


def _kill_after_a_checkpoint(command: list[str], tree: Path, runs: Path) -> None:
    """Starts a run and kills it once it has saved a checkpoint."""
    with subprocess.Popen(command, cwd=tree, env=_environment(tree), stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not list(runs.rglob("last-*.ckpt")):
            time.sleep(0.02)
        if process.poll() is not None:
            sys.exit(f"{KILLED}: it ended before it could be killed")
        process.kill()


def _digest(checkpoint: Path) -> str:
    """SHA-256 of every tensor of the model, by name, in a checkpoint."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
    total = hashlib.sha256()
    for name in sorted(name for name in state if name.startswith("model.")):
        tensor = state[name].contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Checks a commit out into a temporary folder, which is removed after the block."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        add = ["git", "worktree", "add", "--quiet", "--detach", str(tree), commit]
        done = subprocess.run(add, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"--against {commit} cannot be checked out: {done.stderr.strip()}")
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="compare with what this commit trains")
    arguments = parser.parse_args()
    with ExitStack() as opened:
        # Before anything is trained, since the commit may not exist.
        other = opened.enter_context(checkout(arguments.against)) if arguments.against else None
        here = digests(ROOT)
        there = digests(other) if other is not None else {}
    for run, digest in here.items():
        verdict = "" if not there else "  same" if there.get(run) == digest else f"  DIFFERS from {arguments.against}"
        print(f"{digest[:16]}  {run}{verdict}")
    if there and there != here:
        sys.exit(1)


if __name__ == "__main__":
    main()
