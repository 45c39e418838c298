"""Work by several processes side by side."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lab.report import side_by_side as module
from lab.report.side_by_side import side_by_side

SLOW = """
import os, sys, time
from pathlib import Path
from lab.report.side_by_side import side_by_side

def wait(folder):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(60)

if __name__ == "__main__":
    side_by_side(wait, [sys.argv[1]] * 4, 2, 2)
"""


def place(number: int) -> tuple[int, bool]:
    return number, multiprocessing.parent_process() is not None


def ends_its_process(number: int) -> int:
    if number == 3 and multiprocessing.parent_process() is not None:
        os._exit(1)
    return number


def fails(number: int) -> None:
    raise ValueError(f"no {number}")


def test_results_come_in_order_from_processes_where_there_is_enough_to_do() -> None:
    assert side_by_side(place, range(8), 2, 4) == [(number, True) for number in range(8)]
    assert side_by_side(place, range(7), 2, 4) == [(number, False) for number in range(7)]
    assert side_by_side(place, range(8), 1, 4) == [(number, False) for number in range(8)]
    assert side_by_side(place, [], None, 4) == []
    with pytest.raises(ValueError, match="no 0"):
        side_by_side(fails, range(4), 2, 2)


def test_where_no_process_may_begin_or_one_is_killed_this_one_does_the_work(monkeypatch, capsys) -> None:
    assert side_by_side(ends_its_process, range(4), 2, 2) == [0, 1, 2, 3]
    assert "one process does the work of 2, as one of them was lost" in capsys.readouterr().err
    with multiprocessing.Pool(1) as pool:
        assert pool.apply(side_by_side, (str, range(4), 2, 2)) == ["0", "1", "2", "3"]

    def none_may_begin(*_: object, **__: object) -> None:
        raise PermissionError("no semaphores")

    monkeypatch.setattr(module, "ProcessPoolExecutor", none_may_begin)
    assert side_by_side(place, range(4), 2, 2) == [(number, False) for number in range(4)]


def test_processes_end_with_the_one_that_made_them(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    (tmp_path / "slow.py").write_text(SLOW)
    with subprocess.Popen([sys.executable, tmp_path / "slow.py", begun]) as process:
        until = time.monotonic() + 60
        while len(list(begun.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        workers = [psutil.Process(int(path.name)) for path in begun.iterdir()]
        process.kill()
    gone, alive = psutil.wait_procs(workers, timeout=30)
    assert len(gone) == 2 and not alive
