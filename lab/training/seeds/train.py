"""``seeds=5``: trains the seeds of one setting together, each in the run folder of its single run."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.utils import get_class
from lightning.pytorch.callbacks import Callback, ProgressBar, Timer
from omegaconf import DictConfig, OmegaConf

from lab.callbacks.eureka import find_moment
from lab.callbacks.guards import FiniteLoss, StillHeld
from lab.callbacks.preemption import Preemption
from lab.callbacks.pruning import Pruning
from lab.callbacks.summary import RunSummary
from lab.console import LabError, counted, tell
from lab.datasets.loading import DataModule
from lab.runs.checkpoints import Checkpoint, read_checkpoint, save_checkpoint
from lab.runs.outcome import Ending
from lab.runs.spec import device_count
from lab.training.build import build_callbacks, build_checkpoints, build_loggers, build_model_and_data, build_trainer
from lab.training.dry_run import DryRun
from lab.training.open_run import OpenRun
from lab.training.resume import check_resumable
from lab.training.seeds.callbacks import Bind, EachSeed, EachSeedCheckpoints
from lab.training.seeds.module import OneSeed, Seed, SeedsData, SeedsModule
from lab.training.seeds.stack import Stack, join_optimizer_states


def check_trainer(config: DictConfig) -> None:
    """Raises LabError if the trainer would mix seeds or spread them over devices, or batches differ in shape."""
    if getattr(get_class(config.data._target_), "ragged", False):
        raise LabError(
            "seeds cannot train together on batches that differ in shape: run them one by one, -m seed=0,1,2"
        )
    if device_count(config.trainer) != 1 or config.trainer.num_nodes != 1:
        raise LabError(
            "seeds trains on one device (trainer.devices=1): share seeds out over devices with -m seed=0,1,2"
        )
    if config.data.get("workers"):
        raise LabError(
            "seeds read the data of all seeds in the training process: give data.workers=0, or run them one by one"
        )
    for key in ("min_epochs", "min_steps"):
        if config.trainer.get(key):
            raise LabError(f"seeds cannot train a seed beyond its end: leave trainer.{key} out, or run them one by one")
    if config.trainer.get("gradient_clip_val"):
        raise LabError(
            "seeds cannot clip gradients, which would be clipped over all seeds together: run them one by one"
        )
    if str(config.trainer.precision).startswith("16"):
        raise LabError(
            "seeds cannot scale the loss of all seeds together: take trainer.precision=bf16-mixed or 32-true"
        )


def train_together(runs: list[OpenRun]) -> None:
    """Trains open runs that differ only in their seed.

    Seeds that resume from the same step train together; usually these are all seeds.
    """
    paths = [{} if one.spec.force else {own.step: own.path for own in one.run.intact_checkpoints()} for one in runs]
    began_together = len({one.fixed.seeds_together for one in runs}) == 1 and runs[0].fixed.seeds_together
    if began_together and not all(paths) and max(map(len, paths)) == 1:
        # Killed before all seeds had a first checkpoint: all start anew, since apart they would round differently.
        paths = [{} for _ in runs]
    for_all = {"seeds_together": len(runs)}
    runs = [
        one if one.fixed.seeds_together else replace(one, fixed=one.fixed.model_copy(update=for_all)) for one in runs
    ]
    common = set.intersection(*map(set, paths))
    at_step: dict[int, list[tuple[OpenRun, Path | None]]] = {}
    for one, own in zip(runs, paths, strict=True):
        # A kill between the checkpoints of two seeds leaves one seed ahead; all have the checkpoint before.
        step = max(common or own, default=0)
        at_step.setdefault(step, []).append((one, own.get(step)))
    for step in sorted(at_step):
        _train_group(at_step[step])


def _train_group(group: list[tuple[OpenRun, Path | None]]) -> None:
    """Trains open runs from their checkpoints, all at the same step, or from the start where these are None."""
    runs = [one for one, _ in group]
    ending = Ending(*(one.run.folder for one in runs))
    module: SeedsModule | None = None
    pruning: Pruning | None = None
    preemption = Preemption(runs[0].spec.force)
    try:
        with ending.told():
            own = [read_checkpoint(path) if path else None for _, path in group]
            seeds: list[Seed] = []
            for each, checkpoint in zip(runs, own, strict=True):
                alike = seeds[0].data if seeds and _data_of(each) == _data_of(runs[0]) else None
                seeds.append(_seed(each, checkpoint, preemption, alike))
            _check_callbacks(seeds[0].callbacks)
            spec = runs[0].spec
            config = spec.config
            module = SeedsModule(seeds, config.compile)
            bars = [c for c in build_callbacks(config) if isinstance(c, ProgressBar)]
            pruning = Pruning(config.trial, [find_moment(seed.callbacks) for seed in seeds])
            first = [Bind(), DryRun(seeds[0].module)]
            trainer = build_trainer(spec, [*first, EachSeed(), *bars, pruning, EachSeedCheckpoints(), preemption], [])
            module.attach(trainer)
            listed = ", ".join(str(seed.number) for seed in seeds)
            tell(f"{counted(len(seeds), 'seed')} together ({listed}): {runs[0].run.folder.parent}")
            with tempfile.TemporaryDirectory() as folder:
                there = [checkpoint.content for checkpoint in own if checkpoint is not None]
                resume = _joined_checkpoint(module.stack, there, Path(folder)) if there else None
                with preemption.obeyed():
                    trainer.fit(module, datamodule=SeedsData(seeds), ckpt_path=resume, weights_only=True)
            ending.status = "stopped" if trainer.interrupted or pruning.pruned else "finished"
    finally:
        preemption.put_back()
        for seed in module.seeds if module is not None else []:
            status = "failed" if seed.failure else ending.status
            seed.failure = seed.failure or ending.reason
            seed.finish(status, pruning is not None and pruning.pruned)
        if module is None:
            for one in runs:
                RunSummary(one.run.folder, one.fixed).write(None, ending.status, ending.reason)
    preemption.end_if_told()


def _data_of(one: OpenRun) -> dict[str, Any]:
    """Config of a run's data but for the seed."""
    plain = OmegaConf.to_container(one.spec.config.data, resolve=True)
    assert isinstance(plain, dict)
    return {str(name): value for name, value in plain.items() if name != "seed"}


def _seed(one: OpenRun, checkpoint: Checkpoint | None, preemption: Preemption, alike: DataModule | None) -> Seed:
    """A seed as its single run would start, or as its checkpoint left it; its images are those of ``alike``."""
    config, run = one.spec.config, one.run
    module, data = build_model_and_data(config, OneSeed, alike)
    for remark in data.remarks() if alike is None else ():
        tell(remark)
    assert isinstance(module, OneSeed)
    summary = RunSummary(run.folder, one.fixed)
    watching = [c for c in build_callbacks(config) if not isinstance(c, ProgressBar)]
    callbacks = [StillHeld(run), FiniteLoss(), *watching, summary, build_checkpoints(config, run, preemption)]
    if checkpoint is not None:
        check_resumable(checkpoint, module, data)
        for callback in callbacks:
            if state := checkpoint.content["callbacks"].get(callback.state_key):
                callback.load_state_dict(state)
    run.keep(data.kept())
    loggers = build_loggers(one.spec, run, checkpoint.step if checkpoint else 0)
    return Seed(one.spec.seed, module, data, callbacks, loggers, run, summary)


def _check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Raises LabError for a callback with checkpoint hooks: these are not called for seeds that train together."""
    for one in callbacks:
        for hook in ("on_save_checkpoint", "on_load_checkpoint"):
            if getattr(type(one), hook) is not getattr(Callback, hook):
                raise LabError(
                    f"{type(one).__name__}.{hook} is not called for seeds that train together: keep what it saves in "
                    "its state_dict, or run seeds one by one"
                )


def _joined_checkpoint(stack: Stack, own: list[dict[str, Any]], folder: Path) -> Path:
    """Joins checkpoints of single seeds into one of all seeds, as Lightning reads it; returns its path."""
    optimizers = zip(*(checkpoint["optimizer_states"] for checkpoint in own), strict=True)
    models = [
        {name.removeprefix("model."): value for name, value in checkpoint["state_dict"].items()} for checkpoint in own
    ]
    joined = {
        **own[0],
        "state_dict": {f"stack.{name}": value for name, value in stack.joined_state(models).items()},
        "optimizer_states": [join_optimizer_states(states) for states in optimizers],
        # The time that trainer.max_time leaves; all other states belong to a single seed.
        "callbacks": {key: state for key, state in own[0]["callbacks"].items() if key == Timer.__qualname__},
    }
    path = folder / "joined.ckpt"
    save_checkpoint(joined, path)
    return path
