"""A hyper-parameter search: a multirun whose values Optuna chooses as results come in.

A study is named by what is searched and lies in ``<runs>/.sweeps/search-<digest>.journal``, so that the same command
goes on where it was.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool

import optuna
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn
from omegaconf import DictConfig, OmegaConf
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from lab.config.compose import CONFIGS
from lab.config.hydra_internals import error_of
from lab.config.overrides import is_whole, quoted, read_override
from lab.config.suggestions import choices
from lab.console import LabError, Unfinished, counted, first_line, tell
from lab.runs.spec import runs_folder
from lab.runs.study import PRUNED_AT, PRUNERS, SAMPLERS, chosen, shown
from lab.sweeps.plan import FOLDER
from lab.sweeps.search_space import all_values, by_key, distribution, drawn_values, study_name, what_is_searched
from lab.sweeps.search_study import check_same_search, check_same_space, cut_short_trials, held, opened, written
from lab.sweeps.unfinished import lost_process
from lab.sweeps.waiting import end_if_told

# User attribute of a study: why the trial that failed last did so.
_REASON = "last failure"
# Runs jobs side by side, given the overrides of each job and the number of the first.
Launch = Callable[[Sequence[Sequence[str]], int], Sequence[JobReturn]]


def search(config: DictConfig, launch: Launch) -> None:
    """Runs the trials of a study that are missing, and tells which are the best.

    A trial that was cut short (a kill, a time limit) runs again with the same values and therefore in its own run
    folder, where it goes on from its checkpoint. A trial that failed counts and does not run again. Trials side by
    side that happen to have the same values share one run.

    Args:
        config: the multirun's, as Hydra composed it.
        launch: the function of Hydra's launcher.

    Raises:
        LabError: if an option is wrong, another process runs the same search, no trial has finished, or a trial was cut
            short; the same command then goes on with it.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    settings, runs = config.hydra.sweeper, runs_folder(config)
    _check_options(config.hydra)
    typed = by_key(config)
    swept = {key: override for key, override in typed.items() if override.is_sweep_override()}
    fixed = [str(override.input_line) for key, override in typed.items() if key not in swept]
    if not swept:
        raise LabError("a search needs something to search: a key with an interval(), a choice() or a range()")
    space = {key: distribution(override) for key, override in swept.items()}
    name = str(settings.study_name or study_name(config))
    with held(runs / FOLDER, name):
        where = settings.storage or str(runs / FOLDER / f"{name}.journal")
        with written(name):
            study = opened(name, where, settings)
            check_same_search(study, [one for one in what_is_searched(config) if one.partition("=")[0] not in swept])
            check_same_space(study, space)
            cut_short = cut_short_trials(study, space)
            asked, known = settings.n_trials, len(study.trials)
            if settings.sampler.name == "grid":
                asked = min(asked, _ask_for_all(study, swept, settings.sampler.get("seed")))
        if known:
            done, cut = _finished(study), f"{len(cut_short)} cut short"
            if done < asked:
                tell(f"going on with search {name}: {done} of {counted(asked, 'trial')} done, {cut}")
            else:
                tell(f"nothing is left to do in search {name}: {counted(done, 'trial')} done, {asked} asked for, {cut}")
        # A trial that was cut short goes on: force=true would begin it anew.
        without_force = [one for one in fixed if read_override(one).key != "force"]
        pruned = settings.pruner.name != "none"
        started = 0
        while (left := asked - _finished(study)) > 0:
            size = min(left, settings.n_jobs)
            again, cut_short = cut_short[:size], cut_short[size:]
            with written(name):
                new = _asked(study, space, size - len(again), pruned)
            batch = {
                trial.number: (
                    tuple(_overrides(trial)),
                    [*others, *([reference(name, trial.number, where)] if pruned else [])],
                )
                for trials, others in ((again, without_force), (new, fixed))
                for trial in trials
            }
            if batch:
                started += _run(study, batch, asked, launch, started)
            end_if_told()
    _tell_of_best(study, where)


def reference(study: str, number: int, storage: str) -> str:
    """The override by which a run knows its trial (:class:`lab.runs.study.RunningTrial`)."""
    return f"trial={{study:{quoted(study)},number:{number},storage:{quoted(storage)}}}"


def _check_options(hydra: DictConfig) -> None:
    """Raises LabError at an option that does not exist, or whose value is wrong."""
    settings = hydra.sweeper
    known = [str(key) for key in OmegaConf.load(CONFIGS / "hydra" / "sweeper" / "search.yaml") if key != "_target_"]
    if unknown := [str(key) for key in settings if key not in ("_target_", *known)]:
        raise LabError(f"hydra.sweeper has no {unknown[0]!r}; {choices(unknown[0], known)}")
    for key in ("n_trials", "n_jobs"):
        if not is_whole(settings[key], 1):
            raise LabError(f"hydra.sweeper.{key}={settings[key]} is wrong: give a whole number, at least 1")
    if settings.n_jobs > 1 and hydra.runtime.choices["hydra/launcher"] == "basic":
        raise LabError(
            f"hydra.sweeper.n_jobs={settings.n_jobs} needs a launcher that runs jobs side by side: add "
            "hydra/launcher=joblib, or leave n_jobs out"
        )
    if settings.storage is not None and "://" not in str(settings.storage):
        where = settings.storage
        raise LabError(f"hydra.sweeper.storage={where} is no URL of a database: did you mean sqlite:///{where}?")
    name, seed = settings.study_name, settings.sampler.get("seed")
    if name is not None and not re.fullmatch(r"[\w.-]+", str(name)):
        raise LabError(f"hydra.sweeper.study_name={name} is wrong: give letters, digits, dots and hyphens")
    if seed is not None and not is_whole(seed, 0):
        raise LabError(f"hydra.sweeper.sampler.seed={seed} is wrong: give a whole number, at least 0, or null")
    if settings.direction not in ("maximize", "minimize"):
        raise LabError(f"hydra.sweeper.direction={settings.direction} is wrong: it must be maximize or minimize")
    chosen("sampler", SAMPLERS, settings.sampler)
    chosen("pruner", PRUNERS, settings.pruner)


def _ask_for_all(study: optuna.Study, swept: Mapping[str, Override], seed: int | None) -> int:
    """Queues all points of the grid that the study does not know yet, in random order.

    Returns:
        Number of trials of which each point is one: those of another sampler that repeat a point come on top.

    Raises:
        LabError: if a key has an interval, which has infinitely many values.
    """
    if endless := [str(override.input_line) for override in swept.values() if override.is_interval_sweep()]:
        raise LabError(f"a grid needs values to choose from, choice() or range(), and not {', '.join(endless)}")
    points = list(itertools.product(*map(all_values, swept.values())))
    random.Random(seed).shuffle(points)
    for point in points:
        study.enqueue_trial(dict(zip(swept, point, strict=True)), skip_if_exists=True)
    ended = [drawn_values(trial) for trial in study.trials if trial.state.is_finished()]
    tried = [tuple(values.get(key) for key in swept) for values in ended]
    return len(points) + len(tried) - len({*tried} & {*points})


def _overrides(trial: FrozenTrial | optuna.Trial) -> list[str]:
    return [f"{key}={value}" for key, value in drawn_values(trial).items()]


def _asked(study: optuna.Study, space: Mapping[str, BaseDistribution], count: int, pruned: bool) -> list[optuna.Trial]:
    """Asks for new trials; with a pruner, one whose values it gave up before is given up at once and left out.

    Its run would go on from where it was given up, and could score.
    """
    new = []
    for _ in range(count):
        trial = study.ask(dict(space))
        given_up = study.get_trials(deepcopy=False, states=[TrialState.PRUNED]) if pruned else []
        before = next((one for one in given_up if drawn_values(one) == drawn_values(trial)), None)
        if before is None or before.last_step is None:
            new.append(trial)
            continue
        trial.report(before.intermediate_values[before.last_step], before.last_step)
        study.tell(trial.number, state=TrialState.PRUNED)
        tell(f"pruned at epoch {before.last_step}, as before, with {' '.join(_overrides(trial))}")
    return new


def _run(
    study: optuna.Study,
    batch: Mapping[int, tuple[tuple[str, ...], Sequence[str]]],
    asked: int,
    launch: Launch,
    started: int,
) -> int:
    """Runs trials side by side, writes into the study how they ended, and tells it.

    Args:
        study: the search.
        batch: of each trial, by its number, the values that were chosen and the other overrides.
        asked: trials of the whole search.
        launch: the function of Hydra's launcher.
        started: jobs that were launched before.

    Returns:
        Number of jobs.

    Raises:
        LabError: if a trial was cut short.
    """
    # Two trials with the same values would be two processes in one run folder: only the first is run.
    first: dict[tuple[str, ...], int] = {}
    for number, (values, _) in batch.items():
        first.setdefault(values, number)
    jobs = [[*values, *batch[number][1]] for values, number in first.items()]
    try:
        ends = dict(zip(first, launch(jobs, started), strict=True))
    except BrokenProcessPool as error:  # of joblib, which ends all processes where one was lost
        told = lost_process(f"search {study.study_name}", error)
        raise LabError(f"{told}: the same command goes on") from error
    cut_short = 0
    for number, (values, _) in batch.items():
        with written(study.study_name):
            outcome = _note(study, number, first[values], ends[values])
        if outcome is None:
            cut_short += 1
        else:
            tell(f"[{_finished(study)}/{asked}] {outcome} with {' '.join(values)}")
    if cut_short:
        cut = counted(cut_short, "trial")
        raise LabError(f"{cut} of search {study.study_name} did not come to an end: the same command goes on")
    return len(jobs)


def _note(study: optuna.Study, number: int, trained: int, end: JobReturn) -> str | None:
    """Writes into the study how a trial ended and returns that in words; None if it was cut short and stays open.

    Args:
        study: the search.
        number: of the trial.
        trained: number of the trial with the same values that was run.
        end: result of that run.
    """
    reason = "no validation accuracy at its end: was it shorter than trainer.check_val_every_n_epoch?"
    error = error_of(end)
    if isinstance(error, Unfinished):
        return None
    # Whatever a job raised, the search goes on.
    value, reason = (None, first_line(error)) if error else (end.return_value, reason)
    if value is not None:
        study.tell(number, float(value))
        return f"{value:.6g}"
    epoch = study.trials[trained].user_attrs.get(PRUNED_AT)
    if epoch is None:
        study.set_user_attr(_REASON, reason)
    study.tell(number, state=TrialState.FAIL if epoch is None else TrialState.PRUNED)
    return f"failed ({reason})" if epoch is None else f"pruned at epoch {epoch}"


def _tell_of_best(study: optuna.Study, where: str) -> None:
    """Tells how the trials ended, and which are the best.

    Raises:
        LabError: if no trial has finished.
    """
    states = [trial.state for trial in study.trials if trial.state.is_finished()]
    pruned = f", {states.count(TrialState.PRUNED)} pruned" if TrialState.PRUNED in states else ""
    trials = counted(len(states), "trial")
    tell(f"search {study.study_name}: {trials}, {states.count(TrialState.FAIL)} failed{pruned}; {shown(where)}")
    if TrialState.COMPLETE not in states:
        raise LabError(
            f"none of {trials} of {study.study_name} has a score, so none is the best ({_last_reason(study)}). These "
            "trials do not run again: once the cause is mended (or the pruner less strict), give a larger "
            "hydra.sweeper.n_trials, or another hydra.sweeper.study_name"
        )
    # Once each: a sampler may draw the same values again.
    best = dict.fromkeys(f"best: {one.value:.6g} with {' '.join(_overrides(one))}" for one in study.best_trials)
    for line in best:
        tell(line)


def _last_reason(study: optuna.Study) -> str:
    told = study.user_attrs.get(_REASON)
    if told:
        return f"the last that failed: {told}"
    pruned = all(trial.state == TrialState.PRUNED for trial in study.trials)
    return "all were pruned" if pruned else "some were cut short, the others pruned"


def _finished(study: optuna.Study) -> int:
    return sum(trial.state.is_finished() for trial in study.trials)
