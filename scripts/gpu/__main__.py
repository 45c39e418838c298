"""Runs everything that waits for an NVIDIA GPU within a number of minutes; leaves its pages in results/gpu.

    scripts/gpu/all.sh 30                 # tests, speed, the main task to its moments, Table 1
    scripts/gpu/all.sh 30 --dry-run       # what would be run, and for how long
    scripts/gpu/all.sh 10 --rehearse      # in small, on the processor, with pages in runs/rehearsal
    scripts/gpu/all.sh 10 --only moments

A step that fails or takes too long does not stop those after it. Stop it at any time: the same command goes on with
what is missing. Images come from the folder in EUREKA_DATA, else from .carry/data. Where the variable OUT names a
folder, pages and runs are packed into it after each step, in parts of 15 MiB; at the end also the checkpoints that fit.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from lab.config.arguments import Parser
from lab.console import LabError, refusals
from lab.datasets.sources import Split, TorchvisionSource
from lab.files import check_writable
from lab.signals import handling
from scripts.gpu.carry import CARRIED, SETS, unpack_images
from scripts.gpu.packing import pack
from scripts.gpu.record import Record
from scripts.gpu.running import RESERVE_SECONDS, as_typed, run_all, share
from scripts.gpu.steps import RESUMABLE, ROOT, SHARES, Places, steps


def prepare(rehearse: bool, only: Sequence[str]) -> str:
    """Looks for the GPU and the images, unpacks those that were carried, and returns the name of the device.

    Args:
        rehearse: on the processor, with drawn images.
        only: stages that will be run.

    Raises:
        LabError: if there is no GPU, or no images for a stage that trains on them.
    """
    if rehearse:
        return "processor (rehearsal in small: no number of it says anything)"
    import torch

    if not torch.cuda.is_available():
        raise LabError("PyTorch finds no GPU here: --rehearse shows on the processor that every step works")
    if "EUREKA_DATA" not in os.environ and (CARRIED / "data").exists():
        unpack_images(CARRIED / "data", ROOT / "data")
        os.environ["EUREKA_DATA"] = str(ROOT / "data")
    if set(only) & set(RESUMABLE):
        check_images(Path(os.environ.get("EUREKA_DATA", ROOT / "data")))
    return torch.cuda.get_device_name()


def check_images(data: Path) -> None:
    """Refuses a folder without whole MNIST and Fashion-MNIST, before any step has taken its time.

    Raises:
        LabError: if images are missing or damaged.
    """
    for name in SETS:
        for split in get_args(Split):
            try:
                TorchvisionSource(name, str(data)).load(split)
            except FileNotFoundError as error:
                raise LabError(
                    f"no whole {name} in {data}: set EUREKA_DATA to the folder that holds it, or pack it into .carry "
                    "with python -m scripts.gpu.carry where there is a network"
                ) from error
            except ValueError as error:
                raise LabError(str(error)) from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; 1 if a step has failed, else 0.

    Raises:
        LabError: as :func:`prepare` does.
    """
    parser = Parser("scripts/gpu/all.sh", description=__doc__)
    parser.add_argument("minutes", type=float, help="for all steps together")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run, and run nothing")
    parser.add_argument("--rehearse", action="store_true", help="in small, on the processor")
    parser.add_argument("--only", nargs="+", choices=list(SHARES), metavar="STAGE", help=f"of {', '.join(SHARES)}")
    options = parser.parse_args(arguments)
    if not 0.5 <= options.minutes <= 10_000:
        parser.error(f"MINUTES must be from 0.5 to 10000, got {options.minutes:g}")
    rehearsal = ROOT / "runs" / "rehearsal"
    places = Places(rehearsal / "results", rehearsal / "runs") if options.rehearse else Places()
    only = options.only or list(SHARES)
    plan = steps(places, options.rehearse)
    if options.dry_run:
        seconds = 60 * options.minutes - RESERVE_SECONDS
        chosen, record = [step for step in plan if step.stage in only], Record(places.results)
        left = [step for step in chosen if not record.is_done(step.name)]
        for step in chosen:
            has = f"{step.stage} has {share(step.stage, left, seconds) / 60:.1f} minutes, and what is left before it"
            known = has if step in left else "done already"
            print(f"{step.name}: {known}\n    {as_typed(step.words)}")
        return 0
    words = " ".join(sys.argv[1:] if arguments is None else arguments)
    began, out = float(os.environ.get("EUREKA_GPU_BEGAN", time.time())), os.environ.get("OUT")
    packed = Path(out) if out else None
    if packed is not None:
        check_writable(packed, "OUT")
    device, typed = prepare(options.rehearse, only), f"scripts/gpu/all.sh {words}"
    # SIGTERM acts as Ctrl-C, which ends the running step, too: otherwise it would train on without the kit.
    with handling(signal.default_int_handler, signal.SIGTERM):
        record = run_all(plan, options.minutes, places, device, typed, only, began, packed)
    print(f"written: {places.results / 'README.md'}")
    if packed is not None:
        print(f"packed: {', '.join(map(str, pack(places, packed)))}")
    return int(
        any(
            record.done[step.name].status == "failed"
            for step in plan
            if step.stage in only and step.name in record.done
        )
    )


if __name__ == "__main__":
    with refusals():
        sys.exit(main())
