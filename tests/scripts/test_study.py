"""Studies on two cores: a stopped one goes on, its page says what was not run and shows what was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lab.config.compose import compose_config
from lab.console import LabError
from lab.report.settings import planned
from lab.runs.summary import write_summary
from lab.train import run as train
from scripts.reproduce import study
from scripts.reproduce.kept import keep_run


@pytest.fixture
def typed(trained_here):
    """Runs the command, its trainings in this process."""

    def run(*arguments: str) -> list[list[str]]:
        trained_here.clear()
        study.main(arguments)
        return list(trained_here)

    return run


def test_every_run_of_a_study_composes() -> None:
    for one in study.STUDIES.values():
        for part in one.parts:
            for softmax in part.softmaxes:
                compose_config(part.overrides(softmax))
            assert part.softmaxes[0] == "softmax"


def test_a_study_trains_what_is_missing_and_shows_what_there_is(tmp_path: Path, monkeypatch, typed) -> None:
    options = ("data.numbers=4", "trainer.max_epochs=4", "callbacks.temperatures.every_n_epochs=1")
    part = study.Part("reasoning_small", options, ("softmax", "heat_treatment"), ("attention_entropy",), seeds=1)
    monkeypatch.setattr(study, "STUDIES", {"small": study.Study("A study", "It is small.", (part,))})
    places = ("--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"))
    with pytest.raises(LabError, match=r"nor .* holds a run of the study"):
        typed("small", "--page", *places)
    train([*part.overrides("softmax"), f"paths.runs={tmp_path / 'runs'}", "logger=csv_only"])
    assert not typed("small", "--page", *places)
    page = (tmp_path / "out/README.md").read_text()
    assert "Not run: reasoning_small heat_treatment seed 0." in page and "![attention entropy]" not in page
    assert [overrides[1] for overrides in typed("small", *places)] == ["softmax=heat_treatment"]
    page = (tmp_path / "out/README.md").read_text()
    assert "Not run" not in page and "| heat_treatment" in page
    pictures = [line.split("](")[1][:-1] for line in page.splitlines() if line.startswith("![")]
    assert any("temperatures" in one for one in pictures) and any("attention_entropy" in one for one in pictures)
    assert {one for one in pictures if not (tmp_path / "out" / one).is_file()} == set()
    # On another machine: nothing is trained anew, and the page keeps its pictures.
    shutil.rmtree(tmp_path / "runs")
    assert not typed("small", *places)
    assert (tmp_path / "out/README.md").read_text().split("## ")[1:] == page.split("## ")[1:]
    kept = [path for path in (tmp_path / "out/runs").rglob("*") if path.is_file() and ".report" not in path.parts]
    assert len(kept) == 2 * 3 and not any(str(tmp_path) in path.read_text() for path in kept)


def test_a_copy_gives_way_to_a_run_that_finished_or_is_of_another_configuration(tmp_path: Path, monkeypatch) -> None:
    """Runs lie where one types, by default: their paths stay behind there, too."""
    monkeypatch.chdir(tmp_path)
    typed = ["experiment=reasoning_small", "data.numbers=4", "trainer.max_epochs=2"]
    (done,) = train(typed)
    (folder,) = (path.parent for path in tmp_path.rglob("summary.json"))
    what, kept = planned(typed), tmp_path / "kept"
    write_summary(folder, done.model_copy(update={"status": "failed"}))
    assert keep_run(folder, kept, what).status == "failed"
    write_summary(folder, done)
    assert keep_run(folder, kept, what).finished
    assert not any(str(tmp_path) in path.read_text() for path in kept.iterdir())
    shutil.rmtree(tmp_path / "runs")
    assert keep_run(folder, kept, what).finished
    assert keep_run(folder, kept, planned([*typed, "callbacks.eureka.threshold=0.8"])) is None
