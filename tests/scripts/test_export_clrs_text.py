"""The exporter of CLRS-Text, with a stand-in for dm-clrs: whole files, gone on with, as the lab reads them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab.datasets.text.problem_files import FolderProblems
from scripts import export_clrs_text
from scripts.export_clrs_text import export, parser


@pytest.fixture
def clrs(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A package that counts up, in the place of dm-clrs."""

    def sampler(name: str, seed: int, length: int, **options: object) -> tuple[SimpleNamespace, None]:
        assert options == {"num_samples": -1, "track_max_steps": False, "truncate_decimals": 3}
        numbers = iter(range(1000 * seed, 1000 * seed + 100))
        return SimpleNamespace(next=lambda batch_size: f"{next(numbers)} of {length}"), None

    def text(name: str, sample: str, use_hints: bool) -> tuple[str, str]:
        if name == "broken":
            raise RuntimeError("no sample")
        return f"{name}:\n{sample}\n", f"{use_hints}\n\n"

    splits = {f"_DEFAULT_{split}_ALGOS_AND_LENGTHS": {"bfs": [4, 5], "broken": [4]} for split in ("TRAIN", "VAL")}
    numbers = {"_DEFAULT_TRAIN_NUMBER_OF_SAMPLES": 3, "_DEFAULT_VAL_NUMBER_OF_SAMPLES": 1}
    seeds = {"_DEFAULT_TRAIN_SEEDS": [0], "_DEFAULT_VAL_SEEDS": [3, 14]}
    modules = {
        "generate_clrs_text": SimpleNamespace(**splits, **numbers, **seeds),
        "clrs_utils": SimpleNamespace(format_clrs_example=text),
    }
    made = SimpleNamespace(build_sampler=sampler, clrs_text=SimpleNamespace(**modules))
    monkeypatch.setattr(export_clrs_text, "generator", lambda: made)
    return made


def test_files_are_whole_and_gone_on_with(clrs: SimpleNamespace, tmp_path: Path, capsys) -> None:
    words = ["--out", str(tmp_path / "clrs_text"), "--algorithms", "bfs"]
    export(parser().parse_args(words))
    told = capsys.readouterr().out
    assert "train-bfs.jsonl: 6 problems" in told and "validation-bfs.jsonl: 4 problems" in told
    problems = FolderProblems(str(tmp_path / "clrs_text"))
    assert {one.question for group in problems.validation(0, 9) for one in group} == {
        f"bfs:\n{number} of {size}\n" for number in (3000, 14000) for size in (4, 5)
    }
    with pytest.raises(RuntimeError, match="no sample"):
        export(parser().parse_args(words[:2]))
    assert capsys.readouterr().out.startswith("there already: ")
    assert sorted(path.name for path in (tmp_path / "clrs_text").iterdir()) == [
        "train-bfs.jsonl",
        "validation-bfs.jsonl",
    ]


def test_what_is_wrong_is_told(clrs: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="--algorithms dfs: there is no such algorithm; valid: bfs, broken"):
        export(parser().parse_args(["--out", str(tmp_path / "out"), "--algorithms", "dfs"]))
    assert not (tmp_path / "out").exists()
    del clrs.clrs_text.generate_clrs_text._DEFAULT_VAL_SEEDS
    with pytest.raises(SystemExit, match=r"this version of dm-clrs is not known .*dm-clrs==2\.0\.3"):
        export(parser().parse_args(["--out", str(tmp_path / "out")]))
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "clrs", None)
    with pytest.raises(SystemExit, match=r"environment of its own with the generator: pip install dm-clrs==2\.0\.3"):
        export_clrs_text.generator()
