"""The kit for a GPU: its plan, its shares of time, what it makes of a step that fails, and what it carries."""

from __future__ import annotations

import ast
import gzip
import os
import random
import signal
import sys
import tarfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import ROOT, problem_with

from lab.bench.arguments import parse
from lab.console import LabError
from scripts.gpu import __main__ as kit
from scripts.gpu import packing, running
from scripts.gpu.carry import pack_images, pins, unpack_images
from scripts.gpu.record import Record
from scripts.gpu.steps import SHARES, Places, Step, steps


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    for module in (kit, running, packing):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    return Places(tmp_path / "results", tmp_path / "runs")


def step(name: str, code: str, stage: str = "speed") -> Step:
    return Step(stage, name, ("-c", code))


@pytest.mark.parametrize("rehearse", [False, True])
def test_every_command_of_the_plan_is_one_that_there_is(rehearse: bool, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    plan = steps(Places(tmp_path / "results", tmp_path / "runs"), rehearse)
    assert list(dict.fromkeys(one.stage for one in plan)) == list(SHARES)
    assert len({one.name for one in plan}) == len(plan)
    for one in plan:
        module, *words = one.words[1:]
        if module == "lab.bench":
            assert parse(words).only
        elif module == "pytest":
            assert all(Path(word).exists() for word in words if word.endswith(".py"))
        else:
            assert (ROOT / f"{module.replace('.', '/')}.py").exists()
            given = [word for word in words if "=" in word]
            rows = (
                [[]]
                if module == "lab.train"
                else [["experiment=main_task", f"+row={row}"] for row in ("vit", "resnet9")]
            )
            assert all(problem_with([*row, *given]) is None for row in rows)


def test_a_step_that_fails_or_lasts_does_not_stop_the_others(places: Places, monkeypatch, capsys) -> None:
    monkeypatch.setattr(running, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(running, "RESERVE_SECONDS", 0.0)
    monkeypatch.setattr(running, "share", lambda stage, left, seconds: 1.5 if stage == "speed" else seconds)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    plan = [
        step("fails", "raise SystemExit('there is a | here')", "tests"),
        step("lasts", deaf),
        step("works", "print('all is well')", "moments"),
    ]
    began = time.monotonic()
    record = running.run_all(plan, 1, places, "a stand-in", "scripts/gpu/all.sh 1")
    assert time.monotonic() - began < 20
    assert [record.done[one.name].status for one in plan] == ["failed", "cut off", "done"]
    assert record.done["fails"].said == "there is a | here" and record.done["works"].said == "all is well"
    page = (places.results / "README.md").read_text()
    for words in (
        "scripts/gpu/all.sh 1",
        "a stand-in",
        "cut off",
        "there is a \\| here",
        "logs/works.txt",
        "No run yet",
    ):
        assert words in page
    # Again: what is done is not run, what is not goes on, and the time of both tries counts.
    before = record.done["fails"].seconds
    plan = [step("fails", "print('mended')", "tests"), plan[2]]
    again = running.run_all(plan, 1, places, "a stand-in", "scripts/gpu/all.sh 1")
    assert again.done["fails"].status == "done" and again.done["fails"].seconds > before
    assert capsys.readouterr().err.count("works: at most") == 1


def test_told_to_go_the_kit_ends_its_step(places: Places, tmp_path: Path, monkeypatch) -> None:
    """Else the step would hold the GPU without it. What it has spent is on the page, and packed."""
    there = tmp_path / "pid"
    lasts = step(
        "lasts", f"import os, pathlib, time; pathlib.Path({str(there)!r}).write_text(str(os.getpid())); time.sleep(60)"
    )

    def telling() -> None:
        while not (there.exists() and there.read_text()):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(kit, "prepare", lambda *_: "a stand-in")
    monkeypatch.setattr(kit, "steps", lambda *_: [lasts])
    monkeypatch.setattr(kit, "Places", lambda *_: places)
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    threading.Thread(target=telling).start()
    with pytest.raises(KeyboardInterrupt):
        kit.main(["5"])
    with pytest.raises(ProcessLookupError):
        os.kill(int(there.read_text()), 0)
    record = Record(places.results)
    assert record.done["lasts"].status == "stopped" and record.done["lasts"].seconds > 0
    assert not record.is_done("lasts")
    assert "| stopped " in (places.results / "README.md").read_text()
    assert (tmp_path / "out" / "gpu.tar.gz.0").exists()


def test_missing_images_are_told_before_any_step(tmp_path: Path, monkeypatch) -> None:
    """Only where a stage trains on them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a stand-in")
    monkeypatch.setenv("EUREKA_DATA", str(tmp_path))
    assert kit.prepare(False, ["tests", "speed"]) == "a stand-in"
    with pytest.raises(LabError, match=r"no whole MNIST in .*: set EUREKA_DATA"):
        kit.main(["5", "--only", "speed", "moments"])
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / "MNIST" / "raw" / f"{name}-ubyte").write_bytes(b"no images")
    with pytest.raises(LabError, match="MNIST"):
        kit.main(["5", "--only", "table_1"])


def test_minutes_hold_the_start_the_end_and_what_is_drawn(places: Places, tmp_path: Path, monkeypatch, capsys) -> None:
    """A step that saves when it is told to go, and a slow picture after it."""
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr(running, "RESERVE_SECONDS", 2.0)
    saves = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), exit(143)))\ntime.sleep(60)"
    last = replace(step("saves", saves, "table_1"), afterwards=(("-c", "import time; time.sleep(60)"),))
    began = time.monotonic()
    running.run_all([step("works", "print()"), last], 0.4, places, "a", "b", began=time.time() - 16, out=out)
    assert time.monotonic() - began < 8.5 and list(out.glob("gpu.tar.gz.*"))
    assert "was not drawn: it took more than" in capsys.readouterr().err


def test_no_time_left_is_told_and_leaves_a_page(places: Places, capsys) -> None:
    running.run_all([step("waits", "print()")], 0.1, places, "a stand-in", "scripts/gpu/all.sh 0.1")
    assert "waits: no time is left" in capsys.readouterr().err
    assert "not begun" in (places.results / "README.md").read_text()


def test_time_goes_by_stage_and_what_is_left_over_goes_on() -> None:
    plan = [step("a", "", "tests"), step("b", ""), step("c", ""), step("d", "", "moments"), step("e", "", "table_1")]
    assert running.share("tests", plan, 100) == pytest.approx(100 * SHARES["tests"])
    assert running.share("speed", plan[1:], 90) == pytest.approx(90 * SHARES["speed"] / (1 - SHARES["tests"]))
    assert running.share("table_1", plan[4:], 55) == 55
    both = [step("d", "", "moments"), step("e", "", "moments")]
    assert running.part(both[0], both, 90) == 45  # they go on where they were
    assert running.part(plan[1], plan[1:], 90) == 90


def test_steps_that_are_cut_off_leave_the_later_stages_their_time(places: Places, monkeypatch) -> None:
    monkeypatch.setattr(running, "RESERVE_SECONDS", 0.0)
    given: dict[str, float] = {}
    clock = 1000.0

    def cut_off(one: Step, seconds: float, folder: Path) -> tuple[str, float, str]:
        nonlocal clock
        given[one.name] = seconds
        clock += seconds
        return "cut off", seconds, ""

    monkeypatch.setattr(running, "run_step", cut_off)
    monkeypatch.setattr(running.time, "monotonic", lambda: clock)
    plan = [*(step(f"speed_{number}", "") for number in range(3)), step("moment", "", "moments")]
    running.run_all(plan, 10, places, "a stand-in", "scripts/gpu/all.sh 10")
    assert sum(seconds for name, seconds in given.items() if name != "moment") == pytest.approx(600 * 0.3 / 0.65)
    assert given["moment"] == pytest.approx(600 * 0.35 / 0.65)


def test_a_damaged_record_is_named(places: Places) -> None:
    places.results.mkdir()
    (places.results / "steps.json").write_text('{"a": 1}')
    with pytest.raises(LabError, match=r"steps\.json is no record of steps"):
        Record(places.results)


def test_without_a_gpu_one_sentence_tells_what_can_be_done(monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(LabError, match="finds no GPU here: --rehearse"):
        kit.main(["5"])
    with pytest.raises(SystemExit):
        kit.main(["0.1"])


def test_what_comes_back_is_packed_in_parts(places: Places, tmp_path: Path, monkeypatch) -> None:
    from conftest import write_a_summary

    monkeypatch.setattr(packing, "PART_BYTES", 2**10)
    for name, status in (("whole", "finished"), ("half", "stopped")):
        run = places.runs / "moments" / name / "seed=0"
        write_a_summary(run, status=status)
        (run / "checkpoints").mkdir()
        for number in (1, 2):
            (run / "checkpoints" / f"last-{number:09d}.ckpt").write_bytes(bytes(range(256)) * 2)
    out = tmp_path / "out"
    out.mkdir()
    parts = packing.pack(places, out)
    (tmp_path / "joined").write_bytes(b"".join(part.read_bytes() for part in parts))
    with tarfile.open(tmp_path / "joined") as archive:
        checkpoints = [name for name in archive.getnames() if name.endswith(".ckpt")]
        assert "runs/moments/whole/seed=0/summary.json" in archive.getnames()
    # Of the run that goes on the newest one.
    assert checkpoints == ["runs/moments/half/seed=0/checkpoints/last-000000002.ckpt"]
    # One that is more than may come back stays, and the rest comes; earlier parts are gone.
    newest = places.runs / "moments" / "half" / "seed=0" / "checkpoints" / "last-000000002.ckpt"
    newest.write_bytes(random.Random(0).randbytes(6 * 2**10))
    assert packing.pack(places, out) == sorted(out.iterdir())
    (tmp_path / "joined").write_bytes(b"".join(part.read_bytes() for part in sorted(out.iterdir())))
    with tarfile.open(tmp_path / "joined") as archive:
        assert not [name for name in archive.getnames() if name.endswith(".ckpt")] and archive.getnames()


def test_images_travel_packed(tmp_path: Path) -> None:
    for name in ("MNIST", "FashionMNIST"):
        (tmp_path / "data" / name / "raw").mkdir(parents=True)
        for number in range(4):
            (tmp_path / "data" / name / "raw" / f"{number}-ubyte").write_bytes(bytes([number]) * 1000)
    packed = pack_images(tmp_path / "data", tmp_path / "carried")
    assert len(packed) == 8 and gzip.decompress(packed[1].read_bytes()) == bytes([1]) * 1000
    unpack_images(tmp_path / "carried", tmp_path / "there")
    assert (tmp_path / "there" / "MNIST" / "raw" / "3-ubyte").read_bytes() == bytes([3]) * 1000
    with pytest.raises(LabError, match="holds 0 files of MNIST"):
        pack_images(tmp_path, tmp_path / "carried")


def test_wheels_of_another_python_do_not_stay(tmp_path: Path, monkeypatch) -> None:
    from scripts.gpu import carry

    monkeypatch.setattr(carry, "PACKAGES", ("pydantic_core",))
    version = pins((ROOT / "constraints.txt").read_text())["pydantic-core"]
    names = [f"pydantic_core-{version}-cp{python}-cp{python}-manylinux_2_17_x86_64.whl" for python in (312, 313)]
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in carry.fetch_wheels(tmp_path, "3.13")] == names[1:]
    assert [path.name for path in tmp_path.iterdir()] == names[1:]


def test_what_is_carried_has_a_tested_version() -> None:
    from scripts.gpu.carry import PACKAGES

    pinned = pins((ROOT / "constraints.txt").read_text())
    assert {name.lower().replace("_", "-") for name in PACKAGES} <= pinned.keys()


def test_what_tests_of_a_gpu_import_is_carried_or_there() -> None:
    from scripts.gpu.carry import PACKAGES

    # With PyTorch, Lightning and timm come these.
    there = {"torch", "torchvision", "lightning", "timm", "torchmetrics", "tensorboard", "numpy", "PIL", "yaml"}
    there |= {"matplotlib", "pandas", "scipy", "lab", "scripts", "conftest", "marks"} | sys.stdlib_module_names
    carried = {name.lower().replace("-", "_") for name in PACKAGES} | {"hydra"}
    shared = [ROOT / "tests" / name for name in ("conftest.py", "marks.py")]
    files = [*shared, *(Path(one.words[-1]) for one in steps(Places()) if one.stage == "tests")]
    assert len(files) > 3
    for path in files:
        for node in ast.parse(path.read_text()).body:
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            assert {name.partition(".")[0] for name in names} - there <= carried, path
