"""What a look into a run says: each file, small tables, and how it is asked for."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import train_in

from lab.callbacks.diagnostics.attention_entropy import AttentionEntropy
from lab.config.look_arguments import look_arguments
from lab.config.overrides import read_override
from lab.console import LabError
from lab.files import check_writable
from lab.inspect import main
from lab.runs.checkpoints import read_checkpoint, save_checkpoint
from lab.training.inspection import inspect
from lab.training.looks import Looks


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the reasoning task, four steps long."""
    folder = tmp_path_factory.mktemp("run")
    return train_in(folder, "experiment=reasoning", "data.numbers=4", "trainer.max_epochs=4", "logger=csv_only")


def test_every_file_that_is_written_is_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = ["attention_entropy", "attention_maps", "gradient_norms", "linear_probes"]
    inspect(run, [f"callbacks=[{','.join(named)}]"], out=tmp_path)
    told = capsys.readouterr()
    written = {line.removeprefix("written: ") for line in told.err.splitlines() if line.startswith("written: ")}
    assert written == {str(path) for path in tmp_path.rglob("*") if path.is_file()}
    assert {Path(path).suffix for path in written} == {".csv", ".json", ".npz", ".png", ".pdf"}


def test_a_small_table_is_printed_and_a_large_one_is_not(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inspect(run, ["callbacks=[attention_entropy,attention_scores,linear_probes]"], out=tmp_path)
    told = capsys.readouterr().out
    table = pd.read_csv(tmp_path / "diagnostics" / "attention_entropy.csv")
    assert len(table) == 4 and all(f"{value:.4g}" in told for value in table["entropy"])
    assert "attention_scores" not in told and "linear_probes" not in told


@pytest.mark.parametrize("name", ["attention_entropy", "gradient_norms"])
def test_a_checkpoint_stands_at_a_step_and_not_at_an_epoch(run: Path, tmp_path: Path, name: str) -> None:
    inspect(run, [f"callbacks=[{name}]"], out=tmp_path)
    table = pd.read_csv(tmp_path / "diagnostics" / f"{name}.csv")
    assert "epoch" not in table and table["step"].unique().tolist() == [4]


def test_a_named_checkpoint_is_looked_at(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(run, tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    save_checkpoint(
        read_checkpoint(checkpoints / "last-000000004.ckpt").content | {"global_step": 2},
        checkpoints / "last-000000002.ckpt",
    )
    typed = [f"run={tmp_path / 'run'}", "diagnostics=[attention_entropy]", "checkpoint=2"]
    monkeypatch.setattr(sys, "argv", ["lab.inspect", *typed])
    main()
    table = pd.read_csv(tmp_path / "run" / "inspect" / "step_000000002" / "diagnostics" / "attention_entropy.csv")
    assert table["step"].unique().tolist() == [2]


@pytest.mark.parametrize("typed", ["newest", "-1", "1.5", ""])
def test_what_names_no_checkpoint_is_refused(typed: str) -> None:
    with pytest.raises(LabError, match=f"^checkpoint must be a number of steps, or best, got {re.escape(typed)}$"):
        look_arguments(["run=there", "diagnostics=[attention_maps]", f"checkpoint={typed}"])


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_says_how_and_what(flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["lab.inspect", flag])
    main()
    told = capsys.readouterr()
    assert "python -m lab.inspect run=" in told.out and not told.err
    listed = told.out.splitlines()[-1].removeprefix("diagnostics: ").split(", ")
    assert {"attention_entropy", "gradient_norms", "linear_probes"} <= set(listed)
    assert not {"default", "eureka", "reasoning", "sample_scenes", "progress"} & set(listed)


@pytest.mark.parametrize("words", [["--config-dir", "FOLDER"], ["--config-dir=FOLDER"], ["-cd", "FOLDER"]])
def test_configs_of_one_s_own_are_found_as_in_training(tmp_path: Path, words: list[str]) -> None:
    typed = [word.replace("FOLDER", str(tmp_path)) for word in words]
    parsed = look_arguments([*typed, "run=there", "diagnostics=[mine]"])
    assert f"hydra.searchpath=['file://{tmp_path}']" in parsed["callbacks"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("run='runs/softmax,optim.lr=1e-3/seed=0'", "runs/softmax,optim.lr=1e-3/seed=0"),
        ('run="a b"', "a b"),
        ("run=a b", "a b"),
        ("run=runs/softmax,optim.lr=1e-3/seed=0", "runs/softmax,optim.lr=1e-3/seed=0"),
    ],
)
def test_a_folder_may_stand_in_quotes_as_hydra_has_them(typed: str, meant: str) -> None:
    assert look_arguments([typed, "diagnostics=[mine]"])["run"] == Path(meant)


def test_a_quote_that_does_not_end_is_answered() -> None:
    with pytest.raises(LabError, match="cannot be read"):
        look_arguments(["run='a b", "diagnostics=[mine]"])


def test_options_of_data_have_one_value_and_configs_lie_in_one_folder(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"data\.validation_size=1,2 gives several values"):
        look_arguments(["run=there", "diagnostics=[mine]", "data.validation_size=1,2"])
    with pytest.raises(LabError, match="is the second one: give one folder"):
        look_arguments(["run=there", "diagnostics=[mine]", f"--config-dir={tmp_path}", f"--config-dir={tmp_path}"])
    (quoted := tmp_path / "o'brien").mkdir()
    (found,) = (
        one
        for one in look_arguments([f"--config-dir={quoted}", "run=there", "diagnostics=[mine]"])["callbacks"]
        if one.startswith("hydra")
    )
    assert read_override(found).parsed() == [f"file://{quoted}"]
    assert look_arguments(["run=there", "diagnostics=[mine]", "trust=[a, b]"])["trust"] == ["a", "b"]
    with pytest.raises(LabError, match=r"^run=here is the second run=: give it once$"):
        look_arguments(["run=there", "diagnostics=[mine]", "run=here"])


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_looked_at(run: Path, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"^out: /proc/x/y cannot be written: No such file or directory$"):
        inspect(run, ["callbacks=[attention_entropy]"], out="/proc/x/y")
    check_writable(tmp_path / "new" / "folder", "out:")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("words", [["--config-dir", "nowhere"], ["--config-dir="], ["--config-dir"]])
def test_a_folder_that_is_not_there_is_answered(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lab.inspect", "run=there", "diagnostics=[attention_maps]", *words])
    with pytest.raises(SystemExit):
        main()
    assert "is no folder: name the one that holds" in capsys.readouterr().err


def test_a_folder_without_a_run_is_told_before_pytorch_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"{main.__module__}.noted_if_slow", None)
    monkeypatch.setattr(sys, "argv", ["lab.inspect", f"run={tmp_path}", "diagnostics=[attention_maps]"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err == f"error: {tmp_path} holds no run: config.yaml is missing\n"


def test_options_of_a_softmax_that_is_swapped_in(run: Path) -> None:
    typed = ["softmax=log_length", "softmax.form=log_n", "softmax/normaliser=plus_one"]
    inspect(**_without_threads(look_arguments([f"run={run}", "diagnostics=[attention_entropy]", "device=cpu", *typed])))
    folder = run / "inspect" / "step_000000004,softmax=log_length,softmax.form=log_n,softmax-normaliser=plus_one"
    assert json.loads((folder / "attention_entropy.json").read_text())["softmax"] == " ".join(typed)[len("softmax=") :]
    with pytest.raises(LabError, match=r"^softmax\.form=log_n needs softmax=<name>, the softmax to swap in$"):
        inspect(**look_arguments([f"run={run}", "diagnostics=[attention_entropy]", "softmax.form=log_n"]))
    with pytest.raises(LabError, match=r"^device=foo cannot be used here: "):
        inspect(**_without_threads(look_arguments([f"run={run}", "diagnostics=[attention_entropy]", "device=foo"])))


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("optim.lr=1", "^optim.lr=1: optim is none of the diagnostics that look; valid: attention_entropy$"),
        ("attention_entropy.scens=1", "^attention_entropy has no 'scens'"),
        ("attention_entrpy.scenes=1", "did you mean 'attention_entropy'"),
        ("attention_entropy.folder=there", "^attention_entropy.folder=there: out= names the folder"),
        ("attention_entropy.every_n_epochs=7", "looks once and draws all pictures: leave it out"),
    ],
)
def test_options_that_a_single_look_has_no_use_for_are_refused(
    run: Path, tmp_path: Path, option: str, words: str
) -> None:
    typed = [f"run={run}", "diagnostics=[attention_entropy]", option, f"out={tmp_path}/out"]
    with pytest.raises(LabError, match=words):
        inspect(**_without_threads(look_arguments(typed)))
    assert not list(tmp_path.iterdir())


def _without_threads(parsed: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parsed.items() if name != "threads"}


def test_options_of_another_command_and_a_home_folder_are_answered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    told = look_arguments(["run=~/runs/seed=0", "diagnostics=[attention_entropy]", "out=~/look"])
    assert (told["run"], told["out"]) == (Path("/somewhere/runs/seed=0"), Path("/somewhere/look"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Looks(["callbacks=[attention_entropy]"], "~/look").folder == tmp_path / "look"
    with pytest.raises(LabError, match=r"set the option that names them there, such as data\.source\.digits\.root"):
        look_arguments(["run=here", "diagnostics=[attention_entropy]", "paths.data=there"])


@pytest.mark.parametrize("within", ["draw_found", "keep_arrays", "keep"])
def test_a_look_that_is_broken_off_counts_as_none_and_takes_nothing(
    run: Path, tmp_path: Path, within: str, monkeypatch
) -> None:
    def ended(self: Any, *_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(AttentionEntropy, within, ended)
        inspect(run, ["callbacks=[attention_entropy]"], out=tmp_path)
    inspect(run, ["callbacks=[attention_entropy]"], out=tmp_path)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*.csv")} | {
        path: path.read_bytes() for path in tmp_path.rglob("*.json")
    }
    assert len(kept) == 2
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(AttentionEntropy, within, ended)
        inspect(run, ["callbacks=[attention_entropy]"], out=tmp_path, force=True)
    assert all(path.read_bytes() == content for path, content in kept.items())
    with pytest.raises(LabError, match="holds a look of attention_entropy already"):
        inspect(run, ["callbacks=[attention_entropy]"], out=tmp_path)
