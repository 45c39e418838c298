"""A search by Hydra's Optuna sweeper: trials are runs, failures count, and the same command goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import lab_train, summary_of
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from lab.config.compose import CONFIGS
from lab.console import LabError
from lab.sweeps.status import gather

optuna = pytest.importorskip("optuna", reason="Optuna's sweeper is not installed: pip install -e '.[optuna]'")

from lab.sweeps import search  # noqa: E402

# Under the sampler's seed the second trial's weight decay is negative, which is refused.
SMALL = (
    "-m",
    "+sweep=search",
    "seeds=null",
    "data.numbers=4",
    "trainer.max_epochs=10",
    "threads=1",
    "optim.weight_decay=interval(-1,1)",
)


def trials(runs: Path) -> list:
    (path,) = (runs / ".sweeps").glob("search-*.sqlite")
    return optuna.load_study(path.stem, f"sqlite:///{path}").trials


def test_trials_are_runs_and_the_same_command_goes_on(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    first = lab_train(*SMALL, "hydra.sweeper.n_trials=2", folder=tmp_path)
    assert "2 trials, 1 failed" in first.stderr
    done, failed = trials(runs)
    assert (done.state.name, failed.state.name) == ("COMPLETE", "FAIL")
    assert sorted(run.status for run in gather(runs)) == ["failed", "finished"]
    (finished,) = [run for run in gather(runs) if run.status == "finished"]
    assert done.value == pytest.approx(summary_of(finished.folder)["metrics"]["val/accuracy"])
    # Named by what was run, to the last digit: the same values are the same run.
    assert all(f"{key}={value}" in finished.folder.parent.name for key, value in done.params.items())

    # A trial that a kill has cut short is one that is still running when nobody searches.
    (path,) = (runs / ".sweeps").glob("search-*.sqlite")
    study = optuna.load_study(path.stem, f"sqlite:///{path}")
    cut_short = study.ask(done.distributions | {"optim.weight_decay": optuna.distributions.UniformDistribution(0.1, 1)})
    again = lab_train(*SMALL, "hydra.sweeper.n_trials=4", folder=tmp_path)
    assert "2 of 4 trials done, 1 cut short" in again.stderr
    assert "4 trials" in again.stderr and "best: " in again.stderr
    *_, third, fourth = trials(runs)
    assert third.number == cut_short.number and third.state.name == "COMPLETE"
    assert third.params == cut_short.params != fourth.params
    assert len(gather(runs)) == len(trials(runs)) == 4

    finished_already = lab_train(*SMALL, "hydra.sweeper.n_trials=4", folder=tmp_path)
    assert "4 of 4 trials done" in finished_already.stderr and len(trials(runs)) == 4


def test_a_search_without_any_success_says_so(tmp_path: Path) -> None:
    always_refused = "optim.weight_decay=interval(-2,-1)"
    done = lab_train(*SMALL[:-1], always_refused, "hydra.sweeper.n_trials=2", folder=tmp_path, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "error: none of 2 trials of search-" in done.stderr
    assert [trial.state.name for trial in trials(tmp_path / "runs")] == ["FAIL", "FAIL"]


def test_a_range_upside_down_is_one_sentence(tmp_path: Path) -> None:
    done = lab_train(*SMALL[:-1], "optim.weight_decay=interval(2,1)", folder=tmp_path, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "error: " in done.stderr and "low" in done.stderr


@pytest.fixture
def multirun():
    """Composes a multirun's config, as Hydra does for its callbacks."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        yield lambda *typed: hydra.compose_config(
            "train", ["+sweep=search", *typed], run_mode=RunMode.MULTIRUN, with_log_configuration=False
        )


def test_a_study_is_named_by_what_is_searched(multirun) -> None:
    name = search.study_name(multirun())
    same = (
        "hydra.sweeper.n_trials=7",
        "threads=2",
        "paths.runs=/elsewhere",
        "checkpoints.keep=3",
        "experiment=reasoning",
    )
    assert search.study_name(multirun(*same)) == name
    assert search.study_name(multirun("softmax.tau=1", "seed=3")) == search.study_name(
        multirun("seed=3", "softmax.tau=1")
    )
    others = ["softmax=norm_softmax", "optim.lr=interval(0.1,0.2)", "seeds=5", "seed=3", "experiment=main_task_small"]
    assert len({name, *(search.study_name(multirun(other)) for other in others)}) == 1 + len(others)


def test_two_processes_do_not_search_the_same(multirun, tmp_path: Path) -> None:
    search.prepare(multirun(f"paths.runs={tmp_path}"))
    with pytest.raises(LabError, match="another process is searching search-"):
        search.prepare(multirun(f"paths.runs={tmp_path}"))
    with pytest.raises(SystemExit):
        search.GoOn().on_multirun_start(multirun(f"paths.runs={tmp_path}"))
    search.prepare(multirun(f"paths.runs={tmp_path}", "softmax=norm_softmax"))
    for lock in search._held.values():
        lock.release()
