"""Runs the steps of the GPU kit one after the other, each within its share of the minutes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lab.console import tell
from lab.files import write_text
from lab.runs.provenance import now
from scripts.gpu.packing import pack
from scripts.gpu.page import page
from scripts.gpu.record import Done, Record
from scripts.gpu.steps import RESUMABLE, ROOT, SHARES, Places, Step

# A step that is told to stop may save for so long, or for a quarter of its time if that is less; then it is killed.
GRACE_SECONDS = 30.0
# Limit for the pictures and pages that are made after a step.
AFTERWARDS_SECONDS = 60.0
# Kept back for writing and packing the pages.
RESERVE_SECONDS = 30.0


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
        typed = as_typed(step.words)
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
        tell(f"{step.name}: {as_typed(words)} was not drawn: {why}")


def as_typed(words: Sequence[str]) -> str:
    """A command as it would be typed in the repository."""
    return shlex.join(["python", *words]).replace(f"{ROOT}/", "")
