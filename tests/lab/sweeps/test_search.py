"""A search: trials are runs, failures count, the same command goes on, and a pruner gives trials up."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from conftest import lab_train, runs_in, summary_of, told_to_end
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import RunMode

from hydra_plugins.eureka_lab._search import SearchSweeper
from lab.config.compose import CONFIGS
from lab.console import LabError, Unfinished
from lab.sweeps.status import Gathering, status_of
from lab.train import run

optuna = pytest.importorskip("optuna", reason="Optuna is not installed: pip install -e '.[optuna]'")

from lab.runs.study import RunningTrial, shown, storage_at  # noqa: E402
from lab.sweeps import search, search_space  # noqa: E402

# Under the sampler's seed the second trial's share leaves no input to train on, which is refused.
SMALL = (
    "-m",
    "+sweep=search",
    "seeds=null",
    "data.numbers=4",
    "trainer.max_epochs=10",
    "threads=1",
    "hydra.sweeper.sampler.seed=4",
    "softmax.tau=1",
    "data.train_share=tag(log,interval(1e-4,0.9))",
)


# A launcher that runs jobs side by side, of the lab's own configs; the tests put another in its place.
SIDE_BY_SIDE = "hydra/launcher=slurm"


def study_in(runs: Path) -> Any:
    (path,) = (runs / ".sweeps").glob("search-*.journal")
    return optuna.load_study(study_name=path.stem, storage=storage_at(str(path)))


def trials(runs: Path) -> list:
    return study_in(runs).trials


def test_trials_are_runs_and_the_same_command_goes_on(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    first = lab_train(*SMALL, "hydra.sweeper.n_trials=2", folder=tmp_path)
    assert "2 trials, 1 failed" in first.stderr
    done, failed = trials(runs)
    assert (done.state.name, failed.state.name) == ("COMPLETE", "FAIL")
    # What is refused leaves nothing behind.
    assert [run.status for run in Gathering(runs).look()] == ["finished"]
    (finished,) = [run for run in Gathering(runs).look() if run.status == "finished"]
    assert done.value == pytest.approx(summary_of(finished.folder)["metrics"]["val/accuracy"])
    # Named by what was run, to the last digit: the same values are the same run.
    assert all(f"{key}={value}" in finished.folder.parent.name for key, value in done.params.items())

    # A trial that a kill has cut short is one that is still running when nobody searches.
    cut_short = study_in(runs).ask(
        done.distributions | {"data.train_share": optuna.distributions.FloatDistribution(0.3, 0.9, log=True)}
    )
    again = lab_train(*SMALL, "hydra.sweeper.n_trials=4", folder=tmp_path)
    assert "2 of 4 trials done, 1 cut short" in again.stderr
    assert "4 trials" in again.stderr and "best: " in again.stderr
    *_, third, fourth = trials(runs)
    assert third.number == cut_short.number and third.state.name == "COMPLETE"
    assert third.params == cut_short.params != fourth.params
    complete = [trial for trial in trials(runs) if trial.state.name == "COMPLETE"]
    assert len(Gathering(runs).look()) == len(complete) and len(trials(runs)) == 4

    finished_already = lab_train(*SMALL, "hydra.sweeper.n_trials=4", folder=tmp_path)
    assert ": 4 trials done, 4 asked for, 0 cut short" in finished_already.stderr and len(trials(runs)) == 4


def test_a_search_without_any_success_says_so(tmp_path: Path) -> None:
    always_refused = "data.train_share=interval(0.0001,0.001)"
    done = lab_train(*SMALL[:-1], always_refused, "hydra.sweeper.n_trials=2", folder=tmp_path, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert (
        "error: none of 2 trials of search-" in done.stderr and "the last that failed: data.train_share" in done.stderr
    )
    assert [trial.state.name for trial in trials(tmp_path / "runs")] == ["FAIL", "FAIL"]


def test_a_range_upside_down_is_one_sentence(tmp_path: Path) -> None:
    done = lab_train(*SMALL[:-1], "optim.weight_decay=interval(2,1)", folder=tmp_path, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "error: " in done.stderr and "low" in done.stderr


@pytest.fixture
def multirun() -> Iterator[Any]:
    """Composes a multirun's config, as Hydra does for its sweeper."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        yield lambda *typed: hydra.compose_config(
            "train", ["+sweep=search", *typed], run_mode=RunMode.MULTIRUN, with_log_configuration=False
        )


def test_a_study_is_named_by_what_is_searched(multirun) -> None:
    name = search_space.study_name(multirun())
    same = (
        "hydra.sweeper.n_trials=7",
        "threads=2",
        "paths.runs=/elsewhere",
        "checkpoints.keep=3",
        "experiment=reasoning",
    )
    assert search_space.study_name(multirun(*same)) == name
    assert search_space.study_name(multirun("softmax.tau=1", "seed=3")) == search_space.study_name(
        multirun("seed=3", "softmax.tau=1")
    )
    others = [
        "softmax=norm_softmax",
        "optim.lr=interval(0.1,0.2)",
        "seeds=5",
        "seed=3",
        "experiment=main_task_small",
        "~callbacks.progress",
        "hydra.sweeper.direction=minimize",
    ]
    assert len({name, *(search_space.study_name(multirun(other)) for other in others)}) == 1 + len(others)


def test_a_value_with_pluses_takes_the_place_of_what_would_be_searched(multirun) -> None:
    typed = search_space.by_key(multirun("++optim.lr=0.01"))
    assert "optim.lr" not in typed and not typed["++optim.lr"].is_sweep_override()
    assert search_space.by_key(multirun())["optim.lr"].is_sweep_override()


class Launcher:
    """Answers with the learning rate in place of a trained model's accuracy; keeps what it was asked for."""

    def __init__(self) -> None:
        self.batches: list[list[dict[str, str]]] = []

    def launch(self, jobs: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
        assert first == sum(map(len, self.batches))
        said = [dict(override.split("=", 1) for override in job) for job in jobs]
        self.batches.append(said)
        return [
            JobReturn(overrides=job, status=JobStatus.COMPLETED, _return_value=float(one["optim.lr"]))
            for job, one in zip(jobs, said, strict=True)
        ]


def test_two_processes_do_not_search_the_same(multirun, tmp_path: Path, monkeypatch, capsys) -> None:
    here, launcher = f"paths.runs={tmp_path}", Launcher()
    few = "hydra.sweeper.n_trials=1"

    def launch_while_others_search(jobs: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
        with pytest.raises(LabError, match="another process is searching search-"):
            search.search(multirun(here), launcher.launch)
        sweeper = SearchSweeper()
        sweeper.config = multirun(here)
        monkeypatch.setattr(sweeper, "_launcher", launcher)
        with pytest.raises(SystemExit):
            sweeper.sweep([])
        assert "error: another process is searching" in capsys.readouterr().err
        search.search(multirun(here, few, "softmax=norm_softmax"), launcher.launch)
        return Launcher().launch(jobs, first)

    search.search(multirun(here, few), launch_while_others_search)
    assert [batch[0]["softmax"] for batch in launcher.batches] == ["norm_softmax"]
    search.search(multirun(here, few), launcher.launch)


def test_a_killed_process_of_a_search_is_told(multirun, tmp_path: Path) -> None:
    def launch(*_: Any) -> None:
        raise BrokenProcessPool("A worker process was unexpectedly terminated. This could be caused by a fault")

    with pytest.raises(
        LabError, match=r"^a process of search search-\w+ was lost \(A worker .*: the same command goes on$"
    ):
        search.search(multirun(f"paths.runs={tmp_path}"), launch)
    assert [trial.state.name for trial in trials(tmp_path)] == ["RUNNING"], "and so goes on"


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes", "nsgaii"])
def test_every_sampler_is_chosen_by_its_name_and_repeats_under_its_seed(multirun, tmp_path: Path, sampler: str) -> None:
    if sampler == "cmaes":
        pytest.importorskip("cmaes")
    asked = []
    for folder in ("one", "other"):
        launcher = Launcher()
        options = (f"hydra.sweeper.sampler.name={sampler}", "hydra.sweeper.n_trials=4", "hydra.sweeper.n_jobs=3")
        search.search(multirun(*options, SIDE_BY_SIDE, f"paths.runs={tmp_path / folder}"), launcher.launch)
        assert [len(batch) for batch in launcher.batches] == [3, 1]
        asked.append([one["optim.lr"] for batch in launcher.batches for one in batch])
    assert asked[0] == asked[1] and len(set(asked[0])) == 4
    assert study_in(tmp_path / "one").best_value == max(map(float, asked[0]))


def test_a_grid_has_every_point_once(multirun, tmp_path: Path, capsys) -> None:
    first, second = Launcher(), Launcher()
    points = ("optim.lr=range(0.25,1,0.25)", "softmax=choice(softmax,norm_softmax)", "softmax.tau=null,1")
    grid = (*points, "optim.weight_decay=1", "hydra.sweeper.sampler.name=grid", f"paths.runs={tmp_path}")
    search.search(multirun(*grid, "hydra.sweeper.n_trials=5"), first.launch)
    search.search(multirun(*grid, "hydra.sweeper.n_trials=100"), second.launch)
    jobs = [one for batch in (*first.batches, *second.batches) for one in batch]
    asked = [(one["optim.lr"], one["softmax"], one["softmax.tau"]) for one in jobs]
    assert len(asked) == len(set(asked)) == 12
    assert {float(lr) for lr, _, _ in asked} == {0.25, 0.5, 0.75}
    assert {tau for _, _, tau in asked} == {"null", "1"}
    assert "5 of 12 trials done" in capsys.readouterr().err


def test_a_grid_after_another_sampler_still_has_every_point(multirun, tmp_path: Path) -> None:
    known, grid = Launcher(), Launcher()
    one_value = ("optim.weight_decay=1", "softmax.tau=1", "hydra.sweeper.study_name=mine", f"paths.runs={tmp_path}")
    named = ("optim.lr=choice(0.1,0.2,0.3,0.4)", *one_value)
    random = ("hydra.sweeper.sampler.name=random", "hydra.sweeper.sampler.seed=0", "hydra.sweeper.n_trials=5")
    search.search(multirun(*named, *random), known.launch)
    search.search(multirun(*named, "hydra.sweeper.sampler.name=grid", "hydra.sweeper.n_trials=100"), grid.launch)
    before, after = ([one["optim.lr"] for batch in one.batches for one in batch] for one in (known, grid))
    assert len(before) == 5 > len(set(before))  # some points were drawn twice
    assert {*before} | {*after} == {"0.1", "0.2", "0.3", "0.4"} and not {*before} & {*after}


def test_numbers_of_a_range_are_those_that_were_typed(multirun, tmp_path: Path, recwarn) -> None:
    drawn, grid = Launcher(), Launcher()
    few = (
        "optim.lr=range(0.01,0.1,0.03)",
        "optim.weight_decay=1",
        "softmax.tau=1",
        "hydra.sweeper.study_name=mine",
        f"paths.runs={tmp_path}",
    )
    search.search(multirun(*few, "hydra.sweeper.n_trials=12"), drawn.launch)
    search.search(multirun(*few, "hydra.sweeper.sampler.name=grid", "hydra.sweeper.n_trials=13"), grid.launch)
    asked = {job["optim.lr"] for batch in (*drawn.batches, *grid.batches) for job in batch}
    assert asked == {"0.01", "0.04", "0.07"} and grid.batches == [], "the grid knows what was drawn"
    assert not [one for one in recwarn if "divisible" in str(one.message)]


def test_a_study_may_lie_in_a_database(multirun, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    kept = ("hydra.sweeper.study_name=mine", f"hydra.sweeper.storage={url}", f"paths.runs={tmp_path}")
    search.search(multirun(*kept, "hydra.sweeper.n_trials=2"), Launcher().launch)
    assert len(optuna.load_study(study_name="mine", storage=url).trials) == 2


def test_a_named_study_keeps_to_what_it_began_with(multirun, tmp_path: Path) -> None:
    named = ("hydra.sweeper.study_name=mine", f"paths.runs={tmp_path}", "hydra.sweeper.n_trials=2")
    search.search(multirun(*named, "softmax=softmax,norm_softmax"), Launcher().launch)
    others = {
        "hydra.sweeper.direction=minimize": "hydra.sweeper.direction=minimize, but study mine has maximize",
        "softmax=softmax,norm_softmax,hard": "study mine has searched other values of softmax",
        "data.numbers=4,5": "study mine has searched .*, and this search differs in data.numbers: give another",
        "optim.weight_decay=0.5": "study mine has begun with other values than these .optim.weight_decay=0.5",
        "experiment=main_task_small": "experiment=main_task_small, experiment=reasoning",
    }
    for other, words in others.items():
        with pytest.raises(LabError, match=words):
            search.search(multirun("softmax=softmax,norm_softmax", *named, other), Launcher().launch)
    study = optuna.load_study(study_name="mine", storage=storage_at(str(tmp_path / ".sweeps" / "mine.journal")))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE"]


def test_a_trial_that_was_not_drawn_whole_is_not_run(multirun, tmp_path: Path) -> None:
    named = ("hydra.sweeper.study_name=mine", f"paths.runs={tmp_path}", "softmax=softmax,norm_softmax")
    search.search(multirun(*named, "hydra.sweeper.n_trials=1"), Launcher().launch)
    study = optuna.load_study(study_name="mine", storage=storage_at(str(tmp_path / ".sweeps" / "mine.journal")))
    study.ask({"optim.lr": study.trials[0].distributions["optim.lr"]})
    launcher = Launcher()
    search.search(multirun(*named, "hydra.sweeper.n_trials=3"), launcher.launch)
    assert all({"optim.lr", "softmax"} <= job.keys() for batch in launcher.batches for job in batch)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]


def test_trials_of_equal_values_are_one_run_and_one_line_of_the_best(multirun, tmp_path: Path, capsys) -> None:
    launcher = Launcher()
    side_by_side = (
        SIDE_BY_SIDE,
        "hydra.sweeper.n_trials=6",
        "hydra.sweeper.n_jobs=6",
        "hydra.sweeper.sampler.name=random",
    )
    few = ("optim.lr=choice(0.1,0.2)", "optim.weight_decay=1", "softmax.tau=1")
    search.search(multirun(*few, *side_by_side, f"paths.runs={tmp_path}"), launcher.launch)
    ((*jobs,),) = launcher.batches
    assert sorted(job["optim.lr"] for job in jobs) == ["0.1", "0.2"]
    assert {trial.value == float(trial.params["optim.lr"]) for trial in trials(tmp_path)} == {True}
    assert len(trials(tmp_path)) == 6
    assert sum(trial.value == 0.2 for trial in trials(tmp_path)) > 1
    assert capsys.readouterr().err.count("best: ") == 1
    search.search(multirun(*few, "hydra.sweeper.n_trials=4", f"paths.runs={tmp_path}"), launcher.launch)
    told = capsys.readouterr().err
    assert ": 6 trials done, 4 asked for, 0 cut short" in told and "going on" not in told


def cut_short(jobs: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
    """Answers that no trial has come to its end."""
    error = Unfinished("another process is running in there")
    return [JobReturn(overrides=job, status=JobStatus.FAILED, _return_value=error) for job in jobs]


def test_what_was_cut_short_goes_on_with_its_values(multirun, tmp_path: Path) -> None:
    here = (f"paths.runs={tmp_path}", "hydra.sweeper.n_trials=2")
    with pytest.raises(LabError, match=r"1 trial of search search-.* did not come to an end"):
        search.search(multirun(*here), cut_short)
    (cut,) = trials(tmp_path)
    launcher = Launcher()
    search.search(multirun(*here), launcher.launch)
    assert launcher.batches[0][0]["optim.lr"] == str(cut.params["optim.lr"])
    assert [trial.state.name for trial in trials(tmp_path)] == ["COMPLETE", "COMPLETE"]


def test_a_trial_that_goes_on_is_not_begun_anew(multirun, tmp_path: Path) -> None:
    here = (f"paths.runs={tmp_path}", "hydra.sweeper.n_trials=2", "force=true")
    with pytest.raises(LabError, match="did not come to an end"):
        search.search(multirun(*here), cut_short)
    launcher = Launcher()
    search.search(multirun(*here), launcher.launch)
    assert ["force" in job for batch in launcher.batches for job in batch] == [False, True]


def test_a_half_line_of_a_study_is_left_out(multirun, tmp_path: Path, capsys) -> None:
    named = ("hydra.sweeper.study_name=mine", f"paths.runs={tmp_path}", "softmax=softmax,norm_softmax")
    search.search(multirun(*named, "hydra.sweeper.n_trials=2"), Launcher().launch)
    path = tmp_path / ".sweeps" / "mine.journal"
    path.write_bytes(path.read_bytes()[:-20])  # as a full disk leaves it
    capsys.readouterr()
    search.search(multirun(*named, "hydra.sweeper.n_trials=3"), Launcher().launch)
    assert "study mine: its last line was not whole" in capsys.readouterr().err
    search.search(multirun(*named, "hydra.sweeper.n_trials=4"), Launcher().launch)
    study = optuna.load_study(study_name="mine", storage=storage_at(str(path)))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 4
    assert "not whole" not in capsys.readouterr().err


def test_a_study_that_cannot_be_written_ends_the_search_in_a_sentence(multirun, tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(search, "_note", full)
    with pytest.raises(Unfinished, match=r"study search-\w+ cannot be written \(.*No space left.*same command goes on"):
        search.search(multirun(f"paths.runs={tmp_path}", "hydra.sweeper.n_trials=1"), Launcher().launch)
    assert [trial.state.name for trial in trials(tmp_path)] == ["RUNNING"]


def test_what_a_pruner_gave_up_is_not_trained_on(multirun, tmp_path: Path, capsys) -> None:
    pruner = ("hydra.sweeper.pruner.name=threshold", "+hydra.sweeper.pruner.lower=0.99")
    named = ("hydra.sweeper.study_name=mine", f"paths.runs={tmp_path}", "optim.weight_decay=1", "softmax.tau=1")
    where, few = str(tmp_path / ".sweeps" / "mine.journal"), "optim.lr=choice(0.1,0.2)"
    trained: list[str] = []

    def below(jobs: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
        (job,) = jobs
        trained.append(next(one for one in job if one.startswith("optim.lr")))
        (trial,) = optuna.load_study(study_name="mine", storage=storage_at(where)).get_trials(
            states=[optuna.trial.TrialState.RUNNING]
        )
        reference = {"study": "mine", "number": trial.number, "storage": where}
        assert RunningTrial(reference).is_pruned(10, 0.5)
        if len(trained) == 1:
            raise KeyboardInterrupt  # before it could note how the trial ended
        return [JobReturn(overrides=job, status=JobStatus.COMPLETED, _return_value=None)]

    with pytest.raises(KeyboardInterrupt):
        search.search(multirun(few, *named, *pruner, "hydra.sweeper.n_trials=6"), below)
    with pytest.raises(LabError, match="all were pruned"):
        search.search(multirun(few, *named, *pruner, "hydra.sweeper.n_trials=6"), below)
    assert sorted(trained) == ["optim.lr=0.1", "optim.lr=0.2"]
    assert "pruned at epoch 10, as before, with optim.lr=0." in capsys.readouterr().err
    study = optuna.load_study(study_name="mine", storage=storage_at(where))
    assert [(trial.state.name, trial.value, trial.last_step) for trial in study.trials] == [("PRUNED", 0.5, 10)] * 6


def test_a_database_is_told_without_its_password() -> None:
    assert shown("mysql://me:secret@host/studies") == "mysql://me:***@host/studies"
    assert shown("/a:b@c/it.journal") == "/a:b@c/it.journal"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("hydra.sweeper.sampler.name=tpee", "hydra.sweeper.sampler.name=tpee does not exist; did you mean 'tpe'"),
        (
            "+hydra.sweeper.sampler.start=3",
            "sampler.start is not an option of TPESampler; .*n_startup_trials",
        ),
        (
            "+hydra.sweeper.sampler.n_startup_trials=abc",
            "sampler.n_startup_trials='abc' is wrong: it must be an? ",
        ),
        ("hydra.sweeper.pruner.name=mean", "hydra.sweeper.pruner.name=mean does not exist; .*median"),
        ("+hydra.sweeper.pruner.every=3", "hydra.sweeper.pruner.every is not an option of NopPruner"),
        ("hydra.sweeper.direction=up", "hydra.sweeper.direction=up is wrong: .*maximize"),
        ("+hydra.sweeper.n_startup_trials=3", "hydra.sweeper has no 'n_startup_trials'; .*valid: direction, .*sampler"),
        ("hydra.sweeper.sampler.seed=abc", "hydra.sweeper.sampler.seed=abc is wrong: give a whole number"),
        ("hydra.sweeper.study_name=a/b", "hydra.sweeper.study_name=a/b is wrong: give letters"),
        ("hydra.sweeper.storage=study.db", r"storage=study\.db is no URL .* did you mean sqlite:///study\.db\?$"),
        ("hydra.sweeper.storage='sqlite:////nowhere/it.db'", "at sqlite:////nowhere/it.db cannot be opened: "),
        ("hydra.sweeper.storage='nosuch://x'", "at nosuch://x cannot be opened: "),
        ("hydra.sweeper.n_trials=0", "hydra.sweeper.n_trials=0 is wrong"),
        ("hydra.sweeper.n_jobs=many", "hydra.sweeper.n_jobs=many is wrong"),
        ("hydra.sweeper.n_jobs=2", "n_jobs=2 needs a launcher .*: add hydra/launcher=joblib, or leave n_jobs out$"),
        ("optim.lr=tag(lgo,interval(1e-3,1e-1))", "there is no tag 'lgo'; did you mean 'log'"),
        ("optim.lr=tag(lgo,choice(1e-3,1e-1))", "there is no tag 'lgo'; did you mean 'log'"),
        ("optim.lr=tag(log,choice(1e-3,1e-1))", "values to choose from have no scale"),
        ("hydra.sweeper.sampler.name=grid", r"a grid needs values .* and not optim.lr=tag\(log"),
        ("hydra.sweeper.params=null", "a search needs something to search"),
        ("optim.lr=range(3,3)", r"optim.lr=range\(3,3\) is no range to search in"),
    ],
)
def test_a_wrong_option_is_told_before_any_run(multirun, tmp_path: Path, option: str, words: str) -> None:
    launcher = Launcher()
    with pytest.raises(LabError, match=words):
        search.search(multirun(option, f"paths.runs={tmp_path}"), launcher.launch)
    assert launcher.batches == []
    if "storage" not in option and "grid" not in option:
        assert not list(tmp_path.iterdir())


def test_hydras_grammar_says_what_is_searched() -> None:
    d = optuna.distributions
    expected = {
        "x=interval(1,2)": d.FloatDistribution(1, 2),
        "x=tag(log,interval(1e-3,1))": d.FloatDistribution(1e-3, 1, log=True),
        "x=int(interval(1,4))": d.IntDistribution(1, 4),
        "x=tag(log,int(interval(1,64)))": d.IntDistribution(1, 64, log=True),
        "x=range(1,8,3)": d.IntDistribution(1, 7, step=3),
        "x=range(3,0,-1)": d.IntDistribution(1, 3),
        "x=range(0,1,0.25)": d.FloatDistribution(0, 0.75, step=0.25),
        "x=range(0.01,0.1,0.03)": d.FloatDistribution(0.01, 0.07, step=0.03),
        "x=range(0.1,0,-0.03)": d.FloatDistribution(0.01, 0.1, step=0.03),
        "x=choice(a,1,true)": d.CategoricalDistribution(["a", "1", "True"]),
        "x=null,'a b'": d.CategoricalDistribution(["null", "'a b'"]),
    }
    parser = OverridesParser.create()
    assert {text: search_space.distribution(parser.parse_override(text)) for text in expected} == expected


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A trial that is given up below an accuracy of 99 % after 20 epochs, and how a run refers to it."""
    where = str(tmp_path / "it's.journal")
    study = optuna.create_study(study_name="study", storage=storage_at(where), direction="maximize")
    study.set_user_attr("pruner", {"name": "threshold", "lower": 0.99, "n_warmup_steps": 20})
    yield study, {"study": "study", "number": study.ask().number, "storage": where}


def test_a_trial_is_pruned_by_what_is_reported(trial) -> None:
    study, reference = trial
    running = RunningTrial(reference)
    assert not running.is_pruned(10, 0.5) and not running.is_pruned(20, 1.0)
    resumed = RunningTrial(reference)
    assert not resumed.is_pruned(20, 0.5), "an epoch that is trained again has been reported"
    assert resumed.is_pruned(30, 0.6)
    (told,) = study.trials
    assert told.intermediate_values == {10: 0.5, 20: 1.0, 30: 0.6} and told.user_attrs == {"pruned at epoch": 30}
    study.tell(reference["number"], state=optuna.trial.TrialState.PRUNED)
    assert not RunningTrial(reference).is_pruned(40, 0.1), "a trial that has ended is no matter of the pruner"


@pytest.mark.parametrize("seeds", [None, 2])
def test_a_pruned_run_is_stopped_and_goes_on_when_asked_for(trial, tmp_path: Path, seeds: int | None) -> None:
    study, reference = trial
    small = ["experiment=reasoning", "data.numbers=4", "trainer.max_epochs=50", "threads=1", f"paths.runs={tmp_path}"]
    small += [] if seeds is None else [f"seeds={seeds}"]
    own = search.reference(reference["study"], reference["number"], reference["storage"])
    run([*small, own])
    summaries = [summary_of(folder) for folder in runs_in(tmp_path)]
    assert [(summary["status"], summary["pruned"]) for summary in summaries] == [("stopped", True)] * (seeds or 1)
    assert [status_of(folder).reason for folder in runs_in(tmp_path)] == ["pruned by its search"] * (seeds or 1)
    assert {summary["epochs"] for summary in summaries} == {20}
    (told,) = study.trials
    mean = sum(summary["metrics"]["val/accuracy"] for summary in summaries) / len(summaries)
    assert told.last_step == 20 and told.intermediate_values[20] == pytest.approx(mean)

    run(small)
    summaries = [summary_of(folder) for folder in runs_in(tmp_path)]
    assert [(summary["status"], summary["epochs"]) for summary in summaries] == [("finished", 50)] * (seeds or 1)
    assert not any(summary["pruned"] for summary in summaries)


def test_a_pruner_needs_the_eureka_callback(trial, tmp_path: Path) -> None:
    _, reference = trial
    own = search.reference(reference["study"], reference["number"], reference["storage"])
    with pytest.raises(LabError, match=r"needs callbacks\.eureka"):
        run(["experiment=reasoning", "data.numbers=4", "callbacks=progress", f"paths.runs={tmp_path}", own])


def test_trials_in_other_processes_are_pruned(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    searched = [*SMALL[:-1], "trainer.max_epochs=40", "optim.weight_decay=interval(0.1,1)"]
    lab_train(*searched, "hydra.sweeper.n_trials=1", folder=tmp_path)
    pruner = ("hydra.sweeper.pruner.name=threshold", "+hydra.sweeper.pruner.lower=0.99")
    side_by_side = ("hydra/launcher=joblib", "hydra.sweeper.n_jobs=2", "hydra.sweeper.n_trials=3")
    done = lab_train(*searched, *pruner, *side_by_side, folder=tmp_path)
    assert "[3/3] pruned at epoch 10 with " in done.stderr and "3 trials, 0 failed, 2 pruned" in done.stderr
    assert [trial.state.name for trial in trials(tmp_path / "runs")] == ["COMPLETE", "PRUNED", "PRUNED"]
    assert sorted(run.status for run in Gathering(tmp_path / "runs").look()) == ["finished", "stopped", "stopped"]
    assert all("trial=" not in summary_of(run.folder)["command"] for run in Gathering(tmp_path / "runs").look())


def test_ctrl_c_leaves_trials_side_by_side_to_the_same_command(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    searched = [*SMALL[:4], "trainer.max_epochs=100000", "softmax.tau=1", "callbacks=eureka", "logger=csv_only"]
    side_by_side = ("hydra/launcher=joblib", "hydra.sweeper.n_jobs=2", "hydra.sweeper.n_trials=3")

    def training(_: int) -> bool:
        return len(list(tmp_path.rglob("checkpoints/best.ckpt"))) == 2

    said = told_to_end([*searched, *side_by_side], tmp_path, training, signal.SIGINT)
    assert said.count("Ctrl-C: saved at step") == said.count("told to end: the same command goes on with it") == 2
    assert not any(words in said for words in ("Error executing job", "HYDRA_FULL_ERROR", "Traceback", "error: "))
    cut = trials(tmp_path / "runs")
    assert [trial.state.name for trial in cut] == ["RUNNING"] * 2
    assert sorted(run.status for run in Gathering(tmp_path / "runs").look()) == ["stopped"] * 2
