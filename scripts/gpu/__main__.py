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
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from lab.config.arguments import Parser
from lab.console import LabError, refusals, tell
from lab.datasets.sources import Split, TorchvisionSource
from lab.report.published import load
from lab.runs.files import DamagedFile, check_writable, read_json, write_json, write_text
from lab.runs.provenance import now
from lab.runs.summary import read_summary
from lab.runs.walk import walk_runs
from lab.signals import handling
from scripts.gpu.carry import CARRIED, SETS, unpack_images
from scripts.gpu.packing import pack
from scripts.gpu.steps import MOMENTS, RESUMABLE, ROOT, SHARES, START, Places, Step, steps
from scripts.reproduce.common import markdown, origin

# A step that is told to stop may save for so long, or for a quarter of its time if that is less; then it is killed.
GRACE_SECONDS = 30.0
# Limit for the pictures and pages that are made after a step.
AFTERWARDS_SECONDS = 60.0
# Kept back for writing and packing the pages.
RESERVE_SECONDS = 30.0
# To reach: 300 epochs of the main task in 250 seconds on an H200.
TARGET_SECONDS, EPOCHS, EPOCH_SIZE = 250, 300, 60_000


@dataclass
class Done:
    """Result of a step.

    Attributes:
        status: "done", "cut off" at its share of the time, "stopped" by Ctrl-C or SIGTERM, or "failed".
        seconds: how long it took, all tries together.
        command: as one would type it.
        device: what it ran on.
        date: when it ended.
        said: the last line that it printed.
    """

    status: str
    seconds: float
    command: str
    device: str
    date: str
    said: str


class Record:
    """Record of all steps, kept in ``steps.json``.

    Args:
        folder: of the pages.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "steps.json"
        self.done: dict[str, Done] = {}
        if not self.path.exists():
            return
        try:
            self.done = {name: Done(**fields) for name, fields in read_json(self.path).items()}
        except (DamagedFile, TypeError, AttributeError) as error:
            raise LabError(f"{self.path} is no record of steps: {error}; move it away to begin anew") from error

    def keep(self, name: str, done: Done) -> None:
        """Writes down how a step went."""
        self.done[name] = done
        write_json(self.path, {key: asdict(value) for key, value in self.done.items()})

    def is_done(self, name: str) -> bool:
        """Tells whether a step need not be run again."""
        return name in self.done and self.done[name].status == "done"


def share(stage: str, left: Sequence[Step], seconds: float) -> float:
    """Seconds for a stage, the first of those that have steps left: its share of the time, and of what is over."""
    return seconds * SHARES[stage] / sum(SHARES[one] for one in {step.stage for step in left})


def part(step: Step, left: Sequence[Step], seconds: float) -> float:
    """Seconds for a step, the first of those that are left, of what its stage has.

    Steps of a resumable stage divide it. Any other step may take all of it, since it begins anew if cut off.
    """
    return seconds / (sum(one.stage == step.stage for one in left) if step.stage in RESUMABLE else 1)


def run_step(step: Step, seconds: float, folder: Path) -> tuple[str, float, str]:
    """Runs a step for at most ``seconds``; returns its status, the seconds it took and the last line that it printed.

    Ctrl-C ends the step as its time does, and the status is then "stopped".

    Args:
        step: to run.
        seconds: after which it is killed; it is told to stop before that, so that it can save.
        folder: of its log.
    """
    grace = min(GRACE_SECONDS, seconds / 4)
    log = folder / "logs" / f"{step.name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("w") as file:
        # A process group of its own, so that none of its processes outlives it.
        process = subprocess.Popen(
            [sys.executable, *step.words],
            cwd=ROOT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},  # or a step that is killed has said nothing
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(seconds - grace)
            status = "failed" if process.returncode else "done"
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as end:
            status = "stopped" if isinstance(end, KeyboardInterrupt) else "cut off"
            process.terminate()
            try:
                process.wait(grace)
            except subprocess.TimeoutExpired:
                tell(f"{step.name} did not end within {grace:.0f} s of being told to")
        finally:
            _end(process)
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return status, time.monotonic() - began, lines[-1][:200] if lines else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def run_all(
    plan: Sequence[Step],
    minutes: float,
    places: Places,
    device: str,
    command: str,
    only: Sequence[str] = tuple(SHARES),
    began: float | None = None,
    out: Path | None = None,
) -> Record:
    """Runs all steps that are not done, one after the other, and keeps the page up to date.

    Args:
        plan: all steps, each of which has its line on the page.
        minutes: for all of them.
        places: where they write.
        device: what they run on.
        command: that this program was started with.
        only: stages whose steps are run.
        began: when the minutes began, as ``time.time()`` tells; None is now.
        out: folder that pages and runs are packed into after each step; None packs nothing.

    Raises:
        KeyboardInterrupt: if it was told to stop, once the step is written down and packed.
    """
    record = Record(places.results)
    late = 0.0 if began is None else max(0.0, time.time() - began)
    ends = time.monotonic() + 60 * minutes - RESERVE_SECONDS - late
    left = [step for step in plan if step.stage in only and not record.is_done(step.name)]
    stage, stage_ends = "", 0.0
    for number, step in enumerate(left):
        if step.stage != stage:
            stage, now_left = step.stage, max(0.0, ends - time.monotonic())
            stage_ends = time.monotonic() + share(stage, left[number:], now_left)
        seconds = part(step, left[number:], max(0.0, stage_ends - time.monotonic()))
        seconds -= min(AFTERWARDS_SECONDS, seconds / 4) if step.afterwards else 0.0
        if seconds < 1:
            tell(f"{step.name}: no time is left")
            continue
        tell(f"{step.name}: at most {seconds / 60:.1f} minutes")
        before = record.done[step.name].seconds if step.name in record.done else 0.0
        status, took, said = run_step(step, seconds, places.results)
        typed = _typed(step.words)
        record.keep(step.name, Done(status, round(before + took, 3), typed, device, now(), said))
        tell(f"{step.name}: {status} after {took:.0f} s{f': {said}' if said else ''}")
        for words in step.afterwards if status != "stopped" else ():
            _draw(step, words, min(AFTERWARDS_SECONDS, ends + RESERVE_SECONDS / 2 - time.monotonic()))
        write_text(places.results / "README.md", page(plan, record, places, command))
        if out is not None:
            pack(places, out, checkpoints=status == "stopped")
        if status == "stopped":
            raise KeyboardInterrupt
    write_text(places.results / "README.md", page(plan, record, places, command))
    return record


def _draw(step: Step, words: Sequence[str], seconds: float) -> None:
    """Draws what there is after a step. A failure is only reported: it can be drawn later, and the kit goes on."""
    why = "no time is left for it"
    if seconds >= 1:
        try:
            done = subprocess.run(
                [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            why = f"it took more than {seconds:.0f} s"
        else:
            said = [f"it ended with {done.returncode}", *done.stderr.strip().splitlines()]
            why = said[-1] if done.returncode else ""
    if why:
        tell(f"{step.name}: {_typed(words)} was not drawn: {why}")


def _typed(words: Sequence[str]) -> str:
    """A command as it would be typed in the repository."""
    return shlex.join(["python", *words]).replace(f"{ROOT}/", "")


def page(plan: Sequence[Step], record: Record, places: Places, command: str) -> str:
    """The page of all steps, as far as they have come."""
    rows = []
    for step in plan:
        done = record.done.get(step.name)
        found = [name for name in step.pages if (places.results / name).exists()]
        rows.append(
            {
                "step": f"[{step.name}](logs/{step.name}.txt)" if done else step.name,
                "status": done.status if done else "not begun",
                "seconds": f"{done.seconds:.0f}" if done else "",
                "device": done.device if done else "",
                "date": done.date[:16] if done else "",
                "page": ", ".join(f"[{name}]({name})" for name in found),
                "last line": done.said.replace("|", "\\|") if done else "",
            }
        )
    commands = [f"{done.command}   # {name}" for name, done in record.done.items()]
    return "\n\n".join(
        [
            "# With a GPU: tests, speed, Eureka-moments of the main task, Table 1",
            origin(command),
            markdown(pd.DataFrame(rows)),
            "## The main task to its Eureka-moments",
            moments(places),
            "## Commands",
            "```bash\n" + "\n".join(commands) + "\n```" if commands else "None yet.",
            "",
        ]
    )


def moments(places: Places) -> str:
    """Table of the runs that end at their moment, beside the paper's, with the time that 300 epochs would take."""
    published = {row.overrides: row.cells for row in load("eureka/table_1").rows if row.group == "Main dataset"}
    rows: list[dict[str, Any]] = []
    for found in walk_runs(places.runs / "moments"):
        summary = read_summary(found.path)
        own = [name for name, (softmax, _) in MOMENTS.items() if summary and f"softmax={softmax}" in summary.overrides]
        if summary is None or not own:
            continue
        row = MOMENTS[own[0]][1]
        theirs = published[(f"+row={row}",)]
        speed = summary.samples_per_second
        rows.append(
            {
                "softmax": own[0],
                "status": summary.status,
                "epochs": summary.epochs,
                "Eureka-epoch": "none yet" if summary.moment is None else summary.moment,
                "paper, mean": theirs["eureka_epoch"].mean,
                "seconds": f"{summary.wall_seconds or 0:.0f}",
                "accuracy": "" if summary.accuracy is None else f"{summary.accuracy:.1%}",
                "images/s": "" if not speed else f"{speed:,.0f}",
                f"{EPOCHS} epochs at this speed, s": "" if not speed else f"{EPOCHS * EPOCH_SIZE / speed:.0f}",
            }
        )
    if not rows:
        return "No run yet."
    told = (
        f"One seed each, with {' '.join(START)}; a run ends at its moment. To reach: {EPOCHS} epochs in "
        f"{TARGET_SECONDS} s on an H200. Validations are not counted in images/s."
    )
    return f"{markdown(pd.DataFrame(rows))}\n\n{told}"


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
            print(f"{step.name}: {known}\n    {_typed(step.words)}")
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
