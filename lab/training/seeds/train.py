"""``seeds=5``: trains the seeds of one setting together, each in the run folder of its single run."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ProgressBar, Timer
from omegaconf import DictConfig

from lab.callbacks.eureka import find_moment
from lab.callbacks.guards import FiniteLoss, StillHeld
from lab.callbacks.preemption import Preemption
from lab.callbacks.pruning import Pruning
from lab.callbacks.summary import RunSummary
from lab.console import LabError, tell
from lab.runs.outcome import Ending
from lab.training.build import build_callbacks, build_checkpoints, build_loggers, build_model_and_data, build_trainer
from lab.training.open_run import OpenRun
from lab.training.seeds.callbacks import Bind, EachSeed, EachSeedCheckpoints
from lab.training.seeds.module import OneSeed, Seed, SeedsData, SeedsModule
from lab.training.seeds.stack import Stack, join_optimizer_states


def check_trainer(config: DictConfig) -> None:
    """Raises LabError where the trainer would mix seeds or share them out."""
    if config.trainer.devices not in (1, "1") or config.trainer.num_nodes != 1:
        raise LabError(
            "seeds trains on one device (trainer.devices=1): share seeds out over devices with -m seed=0,1,2"
        )
    if config.trainer.get("gradient_clip_val"):
        raise LabError(
            "seeds cannot clip gradients, which would be clipped over all seeds together: run them one by one"
        )
    if str(config.trainer.precision).startswith("16"):
        raise LabError(
            "seeds cannot scale the loss of all seeds together: take trainer.precision=bf16-mixed or 32-true"
        )


def train_together(runs: list[OpenRun]) -> None:
    """Trains open runs that differ in their seed alone.

    Seeds that have come equally far go on together; usually that is all of them.
    """
    runs = [replace(one, fixed=one.fixed.model_copy(update={"seeds_together": len(runs)})) for one in runs]
    steps = [set() if one.spec.force else one.run.checkpoint_steps() for one in runs]
    common = set.intersection(*steps)
    at_step: dict[int, list[OpenRun]] = {}
    for one, own in zip(runs, steps, strict=True):
        # A kill between two seeds' checkpoints leaves one of them ahead; the one before it is common to all.
        at_step.setdefault(max(common or own, default=0), []).append(one)
    for step in sorted(at_step):
        _train_group(at_step[step], step)


def _train_group(runs: list[OpenRun], step: int) -> None:
    ending = Ending()
    module: SeedsModule | None = None
    try:
        with ending.told():
            preemption = Preemption()
            seeds = [_seed(one, step, preemption) for one in runs]
            spec = runs[0].spec
            config = spec.config
            module = SeedsModule(seeds, config.compile)
            bars = [c for c in build_callbacks(config) if isinstance(c, ProgressBar)]
            pruning = Pruning(config.trial, [find_moment(seed.callbacks) for seed in seeds])
            trainer = build_trainer(spec, [Bind(), EachSeed(), *bars, pruning, EachSeedCheckpoints(), preemption], [])
            module.attach(trainer)
            listed = ", ".join(str(seed.number) for seed in seeds)
            tell(f"{len(seeds)} seeds together ({listed}): {runs[0].run.folder.parent}")
            with tempfile.TemporaryDirectory() as folder:
                own = [one.run.load_checkpoint(step) for one in runs] if step else []
                resume = _joined_checkpoint(module.stack, own, Path(folder)) if own else None
                trainer.fit(module, datamodule=SeedsData(seeds), ckpt_path=resume, weights_only=True)
            ending.status = "stopped" if trainer.interrupted or pruning.pruned else "finished"
    finally:
        for seed in module.seeds if module is not None else []:
            seed.failure = seed.failure or ending.reason
            seed.finish(ending.status)
        if module is None:
            for one in runs:
                RunSummary(one.run.folder, one.fixed).write(None, ending.status, ending.reason)


def _seed(one: OpenRun, step: int, preemption: Preemption) -> Seed:
    """A seed as its single run would start, or as its checkpoint at ``step`` left it."""
    config, run = one.spec.config, one.run
    module, data = build_model_and_data(config, OneSeed)
    assert isinstance(module, OneSeed)
    summary = RunSummary(run.folder, one.fixed)
    watching = [c for c in build_callbacks(config) if not isinstance(c, ProgressBar)]
    callbacks = [StillHeld(run), FiniteLoss(), *watching, summary, build_checkpoints(config, run, preemption)]
    if step:
        checkpoint = run.load_checkpoint(step)
        module.load_state_dict(checkpoint["state_dict"])
        for callback in callbacks:
            if state := checkpoint["callbacks"].get(callback.state_key):
                callback.load_state_dict(state)
    return Seed(one.spec.seed, module, data, callbacks, build_loggers(one.spec, run, step), run, summary)


def _joined_checkpoint(stack: Stack, own: list[dict[str, Any]], folder: Path) -> Path:
    """A checkpoint of all seeds, as Lightning reads it, from those of single ones."""
    optimizers = zip(*(checkpoint["optimizer_states"] for checkpoint in own), strict=True)
    models = [
        {name.removeprefix("model."): value for name, value in checkpoint["state_dict"].items()} for checkpoint in own
    ]
    joined = {
        **own[0],
        "state_dict": {f"stack.{name}": value for name, value in stack.joined_state(models).items()},
        "optimizer_states": [join_optimizer_states(states) for states in optimizers],
        # What trainer.max_time has left; all else belongs to a seed.
        "callbacks": {key: state for key, state in own[0]["callbacks"].items() if key == Timer.__qualname__},
    }
    path = folder / "joined.ckpt"
    torch.save(joined, path)
    return path
