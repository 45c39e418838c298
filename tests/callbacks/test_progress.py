"""The plain progress lines of a run: each says something new."""

from __future__ import annotations

import io
import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import summary_of, train_in
from lightning.pytorch.callbacks import Timer
from rich.console import Console

from lab import console
from lab.callbacks import progress
from lab.callbacks.access import ends_with_this_epoch
from lab.callbacks.pace import Pace
from lab.callbacks.progress import Line
from lab.callbacks.summary import RunSummary
from lab.console import LabError, duration, noted_if_slow, tell_later
from lab.runs.summary import load_summary

REASONING = ("experiment=reasoning", "model.layer_norm=false", "data.numbers=4", "logger=csv_only")


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch ")]


def test_a_run_of_one_step_is_told_of_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_in(tmp_path, *REASONING, "trainer.max_epochs=1")
    (line,) = lines(capsys)
    assert line.startswith("epoch 1/1  step 1/1") and line.endswith("not validated yet")


def test_the_last_step_is_told_of_again_where_a_validation_came_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_in(tmp_path, *REASONING, "trainer.max_epochs=1", "trainer.check_val_every_n_epoch=1")
    first, last = lines(capsys)
    assert first.endswith("not validated yet")
    assert last.startswith("epoch 1/1  step 1/1") and "accuracy " in last and last.endswith("no Eureka-moment yet")


@pytest.mark.parametrize("place", ["terminal", "dumb terminal", "worker of a sweep"])
def test_a_bar_is_drawn_only_where_it_can_be_drawn_anew(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dumb terminal shows nothing until the end, and the bars of several workers would draw over each other."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb" if place == "dumb terminal" else "xterm")
    monkeypatch.setattr("multiprocessing.parent_process", lambda: object() if "worker" in place else None)
    train_in(tmp_path, *REASONING, "trainer.max_epochs=1")
    drawn = "\x1b[?25l" in capsys.readouterr().err  # a bar hides the cursor
    assert drawn is (place == "terminal")


def test_there_is_a_line_for_every_step_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    often = "callbacks.progress.line_every_seconds=1e-6"
    train_in(tmp_path, *REASONING, "trainer.max_epochs=5", "trainer.check_val_every_n_epoch=2", often)
    told = [line.split("step ")[1].split("  ") for line in lines(capsys)]
    assert sorted({place for place, *_ in told}) == [f"{step}/5" for step in range(1, 6)]
    said = [(place, state) for place, *_, state in told]
    assert len(set(said)) == len(said)
    assert [state == "not validated yet" for _, state in said] == [True, True, *[False] * (len(said) - 2)]


class Clock:
    """Seconds that pass when they are told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_is_of_the_last_minute_and_counts_validations() -> None:
    """1,000 steps of a second, one of 40 seconds among them, a validation of 30 seconds every 100."""
    clock = Clock()
    pace = Pace(clock)
    told = []
    clock.now = 50.0  # the first step compiles
    for step in range(1, 1001):
        clock.now += 40.0 if step == 350 else 1.0
        pace.stepped(step)
        to_come = 1000 - step + 30 * (10 - step // 100)
        if step > 100:
            left = pace.seconds_left(1000 - step, 10 - step // 100, batches=20)
            assert left is not None
            told.append(left / to_come if to_come else 1.0)
        if step % 100 == 0:
            pace.validates(step)
            clock.now += 15.0
            left = pace.seconds_left(1000 - step, 9 - (step - 1) // 100, batches=20)
            assert step == 100 or left == pytest.approx(to_come + 15, rel=0.02)
            clock.now += 15.0
    assert all(0.9 < share < 1.1 for share in told[1:])


def test_the_time_left_follows_a_speed_that_changes() -> None:
    clock = Clock()
    pace = Pace(clock)
    for step in range(1, 2001):
        clock.now += 0.1 if step < 1000 else 0.2
        pace.stepped(step)
        if step in (999, 2000):
            left = pace.seconds_left(1000)
            assert left == pytest.approx(100 if step == 999 else 200, rel=0.01)


PARTS = ["validating 12/40", "loss 0.693", "accuracy 51.8% (plateau 54.5%)", "no Eureka-moment yet", "12,345 images/s"]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 200])
@pytest.mark.parametrize("share", [None, 0.0, 0.1137, 1.0])
def test_the_bar_fits_and_cuts_no_word(width: int, share: float | None) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    console.print(Line("epoch 1,137/10,000", share, "5 h 12 min left", PARTS), end="")
    shown = out.getvalue().rstrip("\n").split("\n")
    assert all(len(line) <= width for line in shown) and len(shown) <= 3
    there = [part for line in shown for part in re.split(" {2,}", line.strip())]
    percent = [] if share is None else [f"{share:.0%}"]
    assert [part for part in there if "━" not in part] == ["epoch 1,137/10,000", *percent, "5 h 12 min left", *PARTS]
    assert any("━" in part for part in there) == bool(share)
    if width >= 160:
        assert len(shown) == 1


def test_times_are_told_in_two_units_at_most() -> None:
    told = [duration(seconds) for seconds in (7, 89, 100, 5000, 18_720, 273_600)]
    assert told == ["7 s", "89 s", "2 min", "83 min", "5 h 12 min", "3 d 4 h"]


def test_what_takes_long_says_so_and_what_does_not_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    tell_later("under way", seconds=0.01).join()
    assert capsys.readouterr().err == "under way\n"
    with noted_if_slow("never told"):
        pass
    assert capsys.readouterr().err == ""


def test_at_a_terminal_what_goes_on_says_so_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    thrice = threading.Event()

    def tell(text: str) -> None:
        told.append(text)
        if len(told) == 3:
            thrice.set()

    monkeypatch.setattr(console, "tell", tell)
    monkeypatch.setattr(console, "_SILENCE", 0.01)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    timer = tell_later("under way", seconds=0.01)
    assert thrice.wait(60)
    timer.cancel()
    timer.join()
    assert told[0] == "under way" and all(re.fullmatch(r"under way: \d+ s so far", text) for text in told[1:])


def test_compiling_and_a_slow_first_batch_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: None)
    monkeypatch.setenv("CXX", "true")  # nothing is compiled
    monkeypatch.setattr(progress, "tell_later", lambda text: tell_later(text, seconds=0.0))
    train_in(tmp_path, *REASONING, "trainer.max_epochs=1", "compile=true")
    said = capsys.readouterr().err
    assert "the first batch and the first validation wait for the compiler" in said
    assert "the first batch is under way" in said


def test_without_a_compiler_one_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        LabError, match="compile=true needs a C\\+\\+ compiler on a CPU, and no-such-compiler is not there"
    ):
        train_in(tmp_path, *REASONING, "compile=true")
    assert not list(tmp_path.iterdir())


def test_the_loss_told_is_that_of_the_last_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also after a validation, and in a run that stops before its last epoch, whose epochs are those trained."""
    often = ("trainer.check_val_every_n_epoch=5", "callbacks.eureka.threshold=0.0001", "callbacks.eureka.stop_after=5")
    folder = train_in(tmp_path, "experiment=reasoning_small", "data.numbers=4", "trainer.max_epochs=60", *often)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch ")]
    first, last = (float(re.search(r"loss (\d+\.\d+)", line)[1]) for line in (lines[0], lines[-1]))
    assert last < first and last == pytest.approx(summary_of(folder)["metrics"]["train/loss"], abs=0.02)
    assert lines[-1].startswith("epoch 10/60  step 10/60 ")


def test_the_time_left_is_never_below_nothing_and_the_summary_stays_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also once the time is over, while ``min_epochs`` trains on."""
    told = []
    sound = RunSummary.write

    def read_back(self: RunSummary, *arguments: object) -> None:
        sound(self, *arguments)
        told.append(load_summary(self.folder).seconds_left)

    monkeypatch.setattr(RunSummary, "write", read_back)
    monkeypatch.setattr(Pace, "seconds_left", lambda *_: 100.0)
    monkeypatch.setattr(Timer, "time_elapsed", lambda *_: 5.0)
    late = ["+trainer.min_epochs=3", "+trainer.max_time.seconds=1", "trainer.check_val_every_n_epoch=1"]
    train_in(tmp_path, *REASONING, "trainer.max_epochs=5", *late)
    assert 0 in told and None in told


@pytest.mark.parametrize(("max_steps", "ends"), [(-1, 3), (4, 2)])
def test_an_epoch_in_which_the_steps_end_is_the_last(max_steps: int, ends: int) -> None:
    """Two steps an epoch, three epochs at most."""
    common = {"max_epochs": 3, "min_epochs": None, "min_steps": None, "should_stop": False, "max_steps": max_steps}
    for epoch in range(ends):
        trainer = SimpleNamespace(current_epoch=epoch, global_step=2 * (epoch + 1), **common)
        assert ends_with_this_epoch(trainer) is (epoch == ends - 1)
