import json
import math
import re
import tracemalloc
from pathlib import Path

import pytest
from conftest import held, python
from hypothesis import given
from hypothesis import strategies as st

from lab.console import LabError
from lab.files import read_file, write_atomically, write_json
from lab.runs.lock import HOLDER
from lab.runs.metrics import read_metrics, read_metrics_table
from lab.runs.metrics_log import MetricsLog


def test_a_failed_write_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})

    def fail(file) -> None:
        file.write(b"half")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError):
        write_atomically(path, fail)
    assert json.loads(path.read_text()) == {"x": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_what_killed_writes_have_left_is_removed_by_the_next_holder(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    places = [tmp_path / "config.yaml", tmp_path / "checkpoints" / "best.ckpt", tmp_path / HOLDER]
    code = "import os; from pathlib import Path; from lab.files import write_atomically\n"
    for path in places:
        killed = f"write_atomically(Path({str(path)!r}), lambda file: os.kill(os.getpid(), 9))"
        python("-c", code + killed, folder=tmp_path, check=False)
    of_others = tmp_path / "..job.json.abcdefgh.unfinished"
    of_others.touch()
    assert len(list(tmp_path.rglob("*.unfinished"))) == 4
    run = held(tmp_path)
    run.release()
    assert list(tmp_path.rglob("*.unfinished")) == [of_others], "which its launcher is writing"


def test_json_has_no_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", math.nan)


def test_metrics_of_one_step_are_one_row(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.csv")
    log.log_metrics({"loss": 1.0, "epoch": 0}, step=1)
    log.log_metrics({"accuracy": 0.5}, step=1)
    log.log_metrics({"loss": 0.5}, step=2)
    log.save()
    assert read_metrics(tmp_path / "metrics.csv") == [
        {"step": 1, "epoch": 0, "loss": 1.0, "accuracy": 0.5},
        {"step": 2, "loss": 0.5},
    ]


def test_a_resumed_log_takes_back_what_comes_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    log = MetricsLog(path)
    for step in range(5):
        log.log_metrics({"loss": step}, step=step)
    log.save()
    resumed = MetricsLog(path, resume_step=3)
    resumed.log_metrics({"loss": 30.0}, step=3)
    resumed.save()
    assert [row["loss"] for row in read_metrics(path)] == [0, 1, 2, 30]
    assert [line.split(",")[0] for line in path.read_text().splitlines()] == ["step", "0", "1", "2", "3"]


def test_a_new_log_starts_empty(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n7,1\n")
    log = MetricsLog(path)
    log.save()
    assert read_metrics(path) == []


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "it is empty"),
        (b"step,epoch,loss", "the last line is incomplete"),
        (b"step,epoch,loss\n1,0,0.5\n2,0,0.", "the last line is incomplete"),
        (b"step,epoch,loss\n1,0,0.5\n2,0\n", "a line has 2 fields, and there are 3 columns"),
        (b"step,epoch,loss\n1,0,0.5,7\n2,0\n", "a line has 4 fields"),
        (b"step,loss\n1,0.5\n", "it has no column epoch"),
        (b"step,epoch,loss,loss\n1,0,0.5,0.5\n", "two columns have one name"),
        (b"step,epoch,loss\n1,0,high\n", "signs that are of no number"),
        (b"step,epoch,loss\n1,0,NA\n", "NA"),
        *(
            (b"step,epoch,loss\n1,0,0.5" + sign + b"\n", "signs that are of no number")
            for sign in (b"\0", b"\r9", b"\xb3")
        ),
        (b"step,epoch,val/loss\n1,,0.5\n", "a validation without its epoch"),
        (b"step,epoch,loss\n1,0," + b"9" * 200_000 + b"\n", "a field is longer than any number"),
        (b"step,epoch,loss\n1.5,0,1\n", "a step or an epoch is no whole number"),
        (b"step,epoch,loss\n1,inf,1\n", "a step or an epoch is no whole number"),
        (b"step,epoch,loss\n,0,1\n", "a step or an epoch is no whole number"),
        (b"step,epoch,\xff\n1,0,1\n", "UnicodeDecodeError"),
    ],
)
def test_damaged_metrics_are_named_and_no_row_is_lost(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(content)
    for read in (read_metrics, read_metrics_table, lambda path: MetricsLog(path, resume_step=9)):
        with pytest.raises(LabError, match=f"{re.escape(str(path))} cannot be read: .*{told}") as found:
            read(path)
        assert "\n" not in str(found.value)
    assert path.read_bytes() == content


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b,c", 'd"e']), st.floats(width=64)), min_size=1, max_size=5))
def test_what_is_logged_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, float]]) -> None:
    log = MetricsLog(tmp_path_factory.getbasetemp() / "metrics.csv")
    for step, row in enumerate(rows):
        log.log_metrics({"epoch": 0, **row}, step=step)
    log.save()
    read = read_metrics(log.path)
    # As text, in which nan is nan.
    logged = [{"step": step, "epoch": 0, **row} for step, row in enumerate(rows)]
    assert [{name: repr(float(value)) for name, value in sorted(row.items())} for row in logged] == [
        {name: repr(value) for name, value in sorted(row.items())} for row in read
    ]
    table = read_metrics_table(log.path)
    assert len(table) == len(rows) and set(table) == set().union(*read)


@pytest.mark.parametrize("value", ["nan", "-nan", "NaN"])
def test_an_accuracy_over_no_samples_has_no_value(tmp_path: Path, value: str) -> None:
    (path := tmp_path / "metrics.csv").write_text(f"step,epoch,val/a,val/b\n0,0,{value},0.5\n1,1,{value},\n2,2,inf,1\n")
    table = read_metrics_table(path)
    missing = {name: table[name].isna().tolist() for name in ("val/a", "val/b")}
    assert missing == {"val/a": [True, True, False], "val/b": [False, True, False]}
    assert [row.get("val/b") for row in read_metrics(path)] == [0.5, None, 1.0]


def test_a_log_that_is_gone_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MetricsLog(tmp_path / "metrics.csv", resume_step=3)
    assert "metrics.csv is missing: what was logged before is lost" in capsys.readouterr().err


def test_a_small_file_takes_little_memory_whatever_may_be_read(tmp_path: Path) -> None:
    (path := tmp_path / "metrics.csv").write_text("step,loss\n1,2\n")
    tracemalloc.start()
    try:
        assert read_file(path, 2**30) == path.read_bytes()
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_folder_that_is_deleted_while_it_is_written_is_told(tmp_path: Path) -> None:
    (folder := tmp_path / "run").mkdir()
    with pytest.raises(LabError, match=r"run is gone: it was deleted or moved while metrics\.csv was written$"):
        write_atomically(folder / "metrics.csv", lambda file: folder.rename(tmp_path / "moved"), make_folder=False)
    with pytest.raises(LabError, match=r"run is gone"):
        write_atomically(folder / "metrics.csv", lambda file: file.write(b"1"), make_folder=False)
