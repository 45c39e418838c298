"""The benchmark's cases, rows and files; never its timings, which belong to the machine."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import ROOT, python

import lab.attention.layers
from lab.bench import __main__ as bench
from lab.bench import measure as measurements
from lab.bench import worker
from lab.bench.arguments import choose_precisions, default_name, parse
from lab.bench.cases import SOFTMAXES, TOKENS, Case, Row, cases
from lab.bench.measure import measure
from lab.bench.report import NOTES, SUFFIXES, number, other_work, save, set_aside, table_of, targets
from lab.bench.timing import Step, quartiles, timed_rounds
from lab.config.compose import CONFIGS
from lab.models.compact_vit import CompactViT
from lab.runs.provenance import provenance

NAMES = sorted(path.stem for path in (CONFIGS / "softmax").glob("*.yaml"))
TINY = Case("attention", softmax="softmax", path="fused", tokens=5, batch=2, seconds=0.0, quick=True)


@pytest.fixture
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer instead of seven."""
    monkeypatch.setattr(measurements, "CompactViT", lambda softmax: CompactViT(softmax=softmax, depth=1))


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    """Saves the seconds that a fresh process takes to import torch."""
    monkeypatch.setattr(bench, "measure_apart", measure)


def is_number(row: Row) -> bool:
    assert row.median is not None and row.lower_quartile is not None and row.upper_quartile is not None
    return 0 < row.lower_quartile <= row.median <= row.upper_quartile and (row.peak_mib or 0) > 0


def test_command_prints_and_saves_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], in_this_process: None
) -> None:
    arguments = ["--quick", "--only", "compose", "--batch-size", "8", "--threads", "1", "--device", "cpu"]
    status = bench.main([*arguments, "--seconds-per-measurement", "0", "--out", str(tmp_path / "new" / "a.json")])
    printed = capsys.readouterr().out
    assert status == 0
    assert "composition" in printed and "samples/s" in printed and "device cpu, 1 thread\n" in printed
    assert "┃ rounds ┃" in printed and NOTES[:60] in printed
    assert printed.count("Target ") == 1 and "Target cannot tell: composed samples/s" in printed
    saved = json.loads((tmp_path / "new" / "a.json").read_text())
    assert [row["quantity"] for row in saved["rows"]] == ["composition", "draws and composition"]
    assert all(is_number(Row(**row)) for row in saved["rows"])
    assert saved["complete"] and saved["threads"] == 1 and saved["device"] == "cpu"
    assert saved["versions"]["torch"] == torch.__version__.split("+")[0]
    assert {"processor", "cores"} <= saved["machine"].keys() and saved["command"] and saved["started"]
    with (tmp_path / "new" / "a.csv").open() as file:
        assert [line["unit"] for line in csv.DictReader(file)] == ["samples/s"] * 2
    text = (tmp_path / "new" / "a.md").read_text()
    assert "| composition |" in text and "Machine: " in text
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a.csv", "a.json", "a.md"]


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_an_ended_benchmark_keeps_what_it_measured(
    ended_by: signal.Signals,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    one_thread: None,
) -> None:
    def measure_one(case: Case) -> list[Row]:
        if case.quantity != "composition":
            os.kill(os.getpid(), ended_by)
            time.sleep(60)
        return [Row(**case.setting(), quantity=case.quantity, unit="samples/s", median=1.0, rounds=3)]

    def unhandled(*_: object) -> None:
        raise AssertionError("the signal reached the test")

    monkeypatch.setattr(bench, "measure_apart", measure_one)
    monkeypatch.setattr(bench, "matrix_product_gflops", lambda dtype, device: 100.0)
    before = signal.signal(signal.SIGTERM, unhandled)
    try:
        arguments = ["--only", "compose", "--threads", "1", "--device", "cpu", "--out", str(tmp_path / "a")]
        assert bench.main(arguments) == 1
        assert signal.getsignal(signal.SIGTERM) is unhandled
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "Interrupted" in capsys.readouterr().out
    saved = json.loads((tmp_path / "a_incomplete.json").read_text())
    assert [row["quantity"] for row in saved["rows"]] == ["composition"]
    assert not saved["complete"] and not (tmp_path / "a.json").exists()


def test_a_table_that_is_there_is_kept(tmp_path: Path) -> None:
    stem = tmp_path / "cpu_train"
    assert set_aside(stem) is None
    for text in ("first", "second"):
        for suffix in SUFFIXES:
            stem.with_name(stem.name + suffix).write_text(text)
        assert set_aside(stem) is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"cpu_train~{number}{suffix}" for number in (1, 2) for suffix in SUFFIXES
    )
    assert (tmp_path / "cpu_train~2.md").read_text() == "second"


@pytest.fixture
def quick_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of their own all the same, but forks."""

    def run(command: list[str], environment: dict[str, str], limit: float) -> subprocess.CompletedProcess:
        return python(*command[1:], folder=ROOT, check=False, environment=environment)

    monkeypatch.setattr(worker, "run", run)


def test_a_case_in_its_own_process(one_thread: None, quick_processes: None) -> None:
    rows = worker.measure_apart(TINY)
    assert [row.quantity for row in rows] == ["forward", "backward"]
    assert all(is_number(row) and not row.error and row.tokens == 5 for row in rows)


def test_a_case_that_takes_too_long_removes_what_it_wrote(tmp_path: Path) -> None:
    program = (
        "import signal, sys, tempfile, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n"
        f"with tempfile.TemporaryDirectory(dir={str(tmp_path)!r}): time.sleep(60)"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        worker.run([sys.executable, "-S", "-c", program], dict(os.environ), limit=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--only seeds --batch-size 8", "--batch-size changes nothing in seeds"),
        ("--only gather --precision bfloat16", "--precision changes nothing in gather"),
        ("--only compose --softmax softmax", "--softmax changes nothing in compose"),
        ("--only ratio --softmax softmax", "nothing to measure: ratio has no measurement of softmax"),
        ("--quick --only ratio --softmax softmax", "nothing to measure: ratio with --quick has no"),
        ("--only train --softmax hardmax", "--softmax hardmax: does not exist; did you mean 'hard'?"),
        (
            "--only train --softmax no_rules.Mine",
            "--softmax no_rules.Mine: cannot be imported: there is no module no_rules",
        ),
        ("--seconds-per-measurement 1e9", "--seconds-per-measurement must be from 0 to 3600"),
        ("--out .", "--out . is a folder"),
        ("--out /proc/x", "--out: /proc cannot be written"),
    ],
)
def test_what_nothing_would_heed_is_refused_before_it_measures(arguments: str, told: str, capsys) -> None:
    with pytest.raises(SystemExit):
        parse([*arguments.split(), "--device", "cpu"])
    assert told in capsys.readouterr().err


def test_a_glance_judges_no_target(tmp_path: Path) -> None:
    seeds = Row("seeds", "a run of 5 seeds / 5 runs", "norm_softmax", "", "", "eager", 0, 4392, "x", 0.5, 0.5, 0.5, 1)
    facts = {**provenance(), "device": "cpu", "threads": 1, "gflops": {}, "load": 0, "left_out": "", "complete": True}
    for quick in (False, True):
        save(tmp_path / "a", [seeds], {**facts, "quick": quick})
        text = (tmp_path / "a.md").read_text()
        assert ("Target reached" in text) is not quick and "| once |" in text


def test_a_failing_case_is_a_row_with_its_error(one_thread: None, quick_processes: None) -> None:
    (row,) = worker.measure_apart(replace(TINY, softmax="hardmax"))
    assert row.median is None
    assert row.error.startswith("lab.console.LabError: softmax=hardmax does not exist; did you mean 'hard'?")
    _, _, (cells,) = table_of([row])
    assert any("hardmax" in cell for cell in cells)


@pytest.mark.parametrize("softmax", SOFTMAXES)
@pytest.mark.parametrize("path", ["fused", "explicit"])
def test_attention_of_every_rule_and_path(softmax: str, path: str, one_thread: None) -> None:
    rows = measure(replace(TINY, softmax=softmax, path=path))
    assert [row.quantity for row in rows] == ["forward", "backward"]
    assert all(is_number(row) and (row.softmax, row.path) == (softmax, path) for row in rows)


def test_attention_of_every_softmax_there_is(one_thread: None) -> None:
    assert len(NAMES) > 15
    for name in NAMES:
        assert all(is_number(row) for row in measure(replace(TINY, softmax=name))), name


def test_softmaxes_of_ones_own_are_measured(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    small_model: None,
    in_this_process: None,
) -> None:
    """A rule without tau, and a normaliser."""
    (tmp_path / "timed_rules.py").write_text(
        "from lab.attention.normalisers.sigmoid import Sigmoid\n"
        "from lab.attention.rule import TemperatureRule\n\n\n"
        "class Mine(TemperatureRule):\n"
        "    def __init__(self, heads, head_dim):\n"
        "        super().__init__(heads, head_dim)\n\n"
        "    def inverse_temperature(self, q_BHND, k_BHMD, mask=None):\n"
        "        return 1 / self.tau\n\n\n"
        "class Squashed(Sigmoid):\n"
        "    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    names = ["timed_rules.Mine", "timed_rules.Squashed"]
    arguments = ["--quick", "--only", "ratio", "--batch-size", "2", "--threads", "1", "--device", "cpu", "--softmax"]
    assert bench.main([*arguments, *names, "--seconds-per-measurement", "0", "--out", "a"]) == 0
    rows = [Row(**row) for row in json.loads(Path("a.json").read_text())["rows"]]
    assert [row.softmax for row in rows] == names and all(is_number(row) for row in rows)
    printed, kept = capsys.readouterr().out, Path("a.md").read_text()
    assert printed.startswith("Other work takes the cores (load average 1000.0, 1 thread, ")
    for text in (printed, kept):
        assert "Other work" in text and "device cpu, 1 thread\n" in text and NOTES[:60] in text and "rounds" in text
        assert text.count("Target ") == 1 and "Target cannot tell: NormSoftmax step / softmax step" in text


@pytest.mark.parametrize(
    ("load", "threads", "device", "told"),
    [(6.3, 2, "cpu", True), (0.3, 2, "cpu", False), (1.4, 1, "cpu", False), (6.3, 2, "cuda", False)],
)
def test_other_work_is_told_where_it_takes_a_core(load: float, threads: int, device: str, told: bool) -> None:
    facts = {"load": load, "threads": threads, "device": device, "machine": {"cores": 2}}
    assert bool(other_work(facts)) is told


def test_softmaxes_that_are_asked_for_take_the_place_of_a_groups_own() -> None:
    def measured(group: str, *asked: str, quick: bool = False) -> list[str]:
        found = cases([group], "cpu", 1, 0.0, quick=quick, softmaxes=asked or None)
        return list(dict.fromkeys(case.softmax for case in found))

    mine = "my_rules.Mine"
    assert measured("train") == measured("attention") == list(SOFTMAXES)
    assert measured("train", quick=True) == measured("seeds") == ["softmax", "norm_softmax"]
    assert measured("ratio") == ["norm_softmax"] and measured("ratio", "softmax", mine) == [mine]
    assert measured("replace") == ["softmax"]
    for group in ("train", "attention", "seeds", "replace", "diagnostics"):
        assert measured(group, mine, "sigmoid", quick=True) == [mine, "sigmoid"]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_attention_is_given_numbers_of_the_precision_it_names(
    precision: str, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    given = set()
    fused = lab.attention.layers.attend

    def noted(q, k, v, *softmax):
        given.update(t.dtype for t in (q, k, v))
        return fused(q, k, v, *softmax)

    monkeypatch.setattr(lab.attention.layers, "attend", noted)
    assert all(is_number(row) for row in measure(replace(TINY, precision=precision)))
    assert given == {getattr(torch, precision)}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("path", ["fused", "explicit"])
def test_training_takes_the_path_it_names(
    path: str, precision: str, small_model: None, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    calls = []
    explicit = lab.attention.layers.attend_explicit

    def counted(*arguments, **options):
        calls.append(1)
        return explicit(*arguments, **options)

    monkeypatch.setattr(lab.attention.layers, "attend_explicit", counted)
    fused = lab.attention.layers.attend
    row, share = measure(replace(TINY, group="train", softmax="norm_softmax", path=path, precision=precision))
    assert is_number(row) and row.unit == "images/s"
    assert is_number(share) and share.unit == "%" and share.rounds == row.rounds
    assert bool(calls) == (path == "explicit")
    assert lab.attention.layers.attend is fused


def test_memory_of_a_training_is_not_that_of_the_product_beside_it(
    small_model: None, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    """A product that holds 512 MiB."""
    held: list[torch.Tensor] = []

    def large(*setting: object) -> tuple[Step, int]:
        held.append(torch.ones(2**27))
        return lambda: torch.ones(64, 64) @ torch.ones(64, 64), 2 * 64**3

    monkeypatch.setattr(measurements, "matrix_product", large)
    row, share = measure(replace(TINY, group="train"))
    assert held and row.growth_mib is not None and row.growth_mib < 400 and share.peak_mib == row.peak_mib


def test_ratio_is_measured_in_pairs(small_model: None, one_thread: None) -> None:
    (row,) = measure(replace(TINY, group="ratio", softmax="norm_softmax"))
    assert is_number(row) and row.unit == "x" and row.rounds == 3


def test_windows_are_measured_on_a_gpu_alone(capsys: pytest.CaptureFixture[str], one_thread: None) -> None:
    assert {case.tokens for case in cases(["windows"], "cuda", 1, 1.0)} == {197, 1025, 4097}
    assert not list(cases(["windows"], "cpu", 1, 1.0))
    with pytest.raises(SystemExit):
        parse(["--only", "windows", "--device", "cpu"])
    assert "only on a GPU" in capsys.readouterr().err
    (row,) = measure(replace(TINY, group="windows", softmax="", path="fused"))
    assert is_number(row) and row.unit == "x"


def test_the_table_covers_what_was_asked_for() -> None:
    everything = list(cases(["compose", "train", "ratio", "attention"], "cpu", 2, 1.0))
    trained = {(c.softmax, c.path, c.precision, c.mode) for c in everything if c.group == "train"}
    assert len(trained) == len(SOFTMAXES) * 2 * 2 * 2
    attended = {(c.tokens, c.precision) for c in everything if c.group == "attention"}
    assert attended == {(tokens, precision) for tokens in TOKENS for precision in ("float32", "bfloat16")}
    assert {c.batch for c in everything if c.group in ("train", "ratio")} == {64}
    assert set(SOFTMAXES) <= set(NAMES)
    assert {c.batch for c in cases(["train", "compose"], "cpu", 2, 1.0, batch=3)} == {3}


def test_interleaved_rounds_alternate_their_order() -> None:
    order: list[str] = []
    steps = [lambda: order.append("a"), lambda: order.append("b")]
    times = timed_rounds(steps, seconds=0.0, minimum=3, device="cpu", alternate=True)
    assert "".join(order) == "abbaab"
    assert [len(t) for t in times] == [3, 3]
    assert quartiles([3.0]) == (3.0, 3.0, 3.0) and quartiles([1.0, 2.0, 3.0]) == (1.5, 2.0, 2.5)


def test_targets_are_judged_by_the_rows_there_are() -> None:
    def row(
        group: str,
        median: float,
        quantity: str = "",
        batch: int = 64,
        softmax: str = "",
        mode: str = "",
        precision: str = "",
    ) -> Row:
        batch = 512 if group == "compose" else batch
        return Row(group, quantity, softmax, "", precision, mode, 0, batch, "", median, median, median, 1)

    def train(median: float, batch: int = 64) -> Row:
        return row("train", median, "training", batch)

    def ratio(median: float, softmax: str = "norm_softmax") -> Row:
        return row("ratio", median, softmax=softmax)

    def replaced(median: float, softmax: str = "softmax") -> Row:
        return row("replace", median, batch=8, softmax=softmax)

    def share(median: float, precision: str) -> Row:
        return row("train", median, "its linear layers over the machine's matrix product", precision=precision)

    def reached(rows: list[Row], device: str = "cpu") -> list[bool | None]:
        return [target.reached for target in targets(rows, device)]

    assert reached([]) == [None] * 17
    together = row("seeds", 1.2, "5 steps together / one", 4392, "norm_softmax", "compile")
    assert reached([together])[8] is None and reached([together], "cuda")[8] is True
    rows = [row("compose", 60_000, "composition"), train(54), train(56), ratio(1.0)]
    assert reached(rows)[:8] == [True, True, None, None, True, None, None, None]
    shares = [share(76, "float32"), share(70, "float32"), share(59, "bfloat16")]
    assert reached(shares)[:4] == [None, None, True, False]
    # The ratio has to hold in every setting, and only batch 64 counts.
    rows = [row("compose", 60_000, "draws and composition"), train(90, batch=8), ratio(1.2)]
    assert reached([*rows, ratio(1.0)])[:8] == [None, None, None, None, False, None, None, None]
    # Of models of other libraries the worst counts.
    ratios = [replaced(1.01), replaced(1.02)]
    assert reached(ratios)[9] is True and reached([*ratios, replaced(1.04)])[9] is False
    # Softmaxes that somebody asked for count in no target.
    mine = "my_rules.Mine"
    assert reached([row("train", 60, "training", softmax=mine), ratio(1.0, mine), replaced(1.0, mine)]) == [None] * 17
    # Of the seeds the best mode counts, under NormSoftmax.
    quantities = ("step of one seed", "step of 5 seeds together", "a run of 5 seeds / 5 runs")
    slow, fast, other = [
        [row("seeds", value, q, 4392, *of) for q, value in zip(quantities, values, strict=True)]
        for of, values in [
            (("norm_softmax", "eager"), (20.0, 70.0, 0.7)),
            (("norm_softmax", "compile"), (9.0, 31.0, 0.6)),
            (("softmax", "compile"), (1.0, 1.0, 0.1)),
        ]
    ]
    assert reached([*slow, *fast, *other])[:8] == [None, None, None, None, None, True, False, True]
    looking = [
        row("diagnostics", 0.04, "all diagnostics / training", softmax="softmax"),
        row("diagnostics", 0.02, "none due / training", softmax="softmax"),
        row("probes", 100.0, "224 representations, 20,000 scenes", 20_000),
        row("probes", 700.0, "whole representation of 28 heads, 4,000 scenes", 20_000),
        row("probes", 12.0, "SGD one by one / batched", 1000),
        row("gather", 9.0, "first, 1,000 runs", 1000),
        row("gather", 2.0, "again, 1,000 runs", 1000),
    ]
    assert reached(looking)[10:] == [True, False, True, False, None, True, False]


@pytest.mark.parametrize(("value", "text"), [(83_123.4, "83,123"), (61.23, "61.2"), (1.1499, "1.150")])
def test_numbers_are_written_without_exponent(value: float, text: str) -> None:
    assert number(value) == text


def test_names_never_let_a_glance_overwrite_a_table() -> None:
    names = {
        default_name(parse([*arguments, "--device", "cpu", "--out", "x"]))
        for arguments in (
            [],
            ["--quick"],
            ["--only", "train"],
            ["--only", "train", "--quick"],
            ["--only", "train", "--precision", "bfloat16"],
            ["--batch-size", "8"],
            ["--only", "attention", "--softmax", "local", "local", "hard"],
        )
    }
    assert names == {
        "cpu",
        "cpu_quick",
        "cpu_train",
        "cpu_train_quick",
        "cpu_train_bfloat16",
        "cpu_batch8",
        "cpu_attention_local_hard",
    }
    many = default_name(parse(["--softmax", *NAMES, "--device", "cpu", "--out", "x"]))
    assert many == f"cpu_{len(NAMES)}_softmaxes"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--batch-size", "0"],
        ["--threads", "0"],
        ["--seconds-per-measurement", "-1"],
        ["--seconds-per-measurement", "nan"],
        ["--only", "everything"],
    ],
)
def test_wrong_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([*arguments, "--out", "x"])
    assert arguments[0] in capsys.readouterr().err


def test_emulated_bfloat16_is_left_out_with_a_reason() -> None:
    fast, slow = {"float32": 100.0, "bfloat16": 800.0}, {"float32": 90.0, "bfloat16": 1.2}
    assert choose_precisions(None, fast, quick=False) == (["float32", "bfloat16"], "")
    precisions, reason = choose_precisions(None, slow, quick=False)
    assert precisions == ["float32"] and "bfloat16" in reason and "1.200" in reason
    assert choose_precisions(["bfloat16"], slow, quick=False) == (["bfloat16"], "")
