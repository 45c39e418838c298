"""A hyper-parameter search that goes on where it was: what Hydra's Optuna sweeper leaves out.

The sweeper keeps a study where it is told to, but asks for all its trials anew each time, under a name that has to be
thought of. Here the study is named by what is searched, in ``<runs>/.sweeps/search-<digest>.sqlite``.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, read_write
from optuna.trial import TrialState

from lab.config.identity import NOT_WHAT
from lab.console import LabError, refusals, tell
from lab.sweeps.plan import FOLDER

# A lock lasts as long as its object, which must not travel to other processes with the callback.
_held: dict[str, FileLock] = {}


class GoOn(Callback):
    """Before a search: its study, how many trials are left, and those that were cut short; after it: the best trial.

    A trial that was cut short (a kill, a time limit) is asked for again, with the same values and therefore in its own
    run folder, where it goes on from its checkpoint. One that failed counts and is not asked for again.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # Hydra would turn an exception of a callback into a warning.
        with refusals():
            prepare(config)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        sweeper = config.hydra.sweeper
        study = optuna.load_study(sweeper.study_name, sweeper.storage)
        failed = sum(trial.state == TrialState.FAIL for trial in study.trials)
        tell(f"search {study.study_name}: {_number(_finished(study), 'trial')}, {failed} failed; {sweeper.storage}")
        for trial in study.best_trials:
            values = ", ".join(f"{value:.6g}" for value in trial.values)
            tell(f"best: {values} with {' '.join(f'{key}={value}' for key, value in trial.params.items())}")
        if (lock := _held.pop(sweeper.study_name, None)) is not None:
            lock.release()


def prepare(config: DictConfig) -> None:
    """Gives the sweeper in a multirun's ``config`` its study and the number of trials that are left.

    Raises:
        LabError: if another process is searching the same.
    """
    folder = Path(config.paths.runs).expanduser().absolute() / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    sweeper = config.hydra.sweeper
    with read_write(config):
        sweeper.study_name = sweeper.study_name or study_name(config)
        sweeper.storage = sweeper.storage or f"sqlite:///{folder / sweeper.study_name}.sqlite"
        # Where the sweeper writes optimization_results.yaml: one file a study.
        config.hydra.sweep.dir = str(folder / sweeper.study_name)
        lock = FileLock(folder / f".{sweeper.study_name}.lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise LabError(
                f"another process is searching {sweeper.study_name} below {folder.parent}: "
                "wait for it, or search something else"
            ) from None
        _held[sweeper.study_name] = lock
        storage = optuna.storages.RDBStorage(sweeper.storage)
        try:
            study = optuna.load_study(sweeper.study_name, storage)
        except KeyError:
            return
        cut_short = [trial for trial in study.trials if trial.state == TrialState.RUNNING]
        for trial in cut_short:
            storage.set_trial_state(trial._trial_id, TrialState.WAITING)
        done = _finished(study)
        tell(
            f"going on with search {study.study_name}: {done} of {_number(sweeper.n_trials, 'trial')} done, "
            f"{len(cut_short)} cut short"
        )
        sweeper.n_trials = max(0, sweeper.n_trials - done)
        if sweeper.sampler.get("seed") is not None:
            # A sampler starts over with each process: under the same seed it would ask for the same again.
            sweeper.sampler.seed += len(study.trials)


def study_name(config: DictConfig) -> str:
    """``search-<digest>``, the same for the same search space and settings in any order, however many trials."""
    params = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
    typed = OverridesParser.create().parse_overrides([*params, *config.hydra.overrides.task])
    # What comes later takes the place of what came before, as in the sweeper.
    said = {key: config.hydra.runtime.choices.get(key) for key in ("experiment", "softmax")}
    said |= {override.get_key_element(): override.get_value_string() for override in typed}
    # Several seeds in a trial are another objective, if not another run.
    tops = {key: key.lstrip("+~").split(".")[0].split("/")[0] for key in said}
    what = sorted(f"{key}={said[key]}" for key, top in tops.items() if top == "seeds" or top not in NOT_WHAT)
    return f"search-{hashlib.blake2b(chr(10).join(what).encode(), digest_size=6).hexdigest()}"


def _finished(study: optuna.Study) -> int:
    return sum(trial.state.is_finished() for trial in study.trials)


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
