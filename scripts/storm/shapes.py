"""Shapes of the runs that the storm disturbs: small, and each saving and resuming in its own way."""

from __future__ import annotations

from pathlib import Path

_REASONING = ("experiment=reasoning", "data.numbers=4", "trainer.max_epochs=30", "checkpoints.every_n_steps=3")
_DRAWN = (
    "data/source=drawn",
    *(f"data.source.{kind}.{split}_size=60" for kind in ("digits", "garments") for split in ("train", "test")),
    "data.batch_size=8",
    "data.epoch_size=32",
    "data.validation_size=16",
    "trainer.max_epochs=3",
    "checkpoints.every_n_steps=2",
)

SHAPES: dict[str, tuple[str, ...]] = {
    "reasoning": _REASONING,
    "heat treatment": (*_REASONING, "softmax=heat_treatment", "seed=5"),
    "learnable temperature": (*_REASONING, "softmax=learnable_temperature", "checkpoints.keep=3"),
    "max retrieval": (
        "experiment=max_retrieval",
        "data.batch_size=8",
        "data.epoch_steps=12",
        "data.validation_size=16",
        "trainer.max_epochs=3",
        "trainer.max_steps=30",
        "checkpoints.every_n_steps=4",
    ),
    "small main task": ("experiment=main_task_small", "softmax=norm_softmax", *_DRAWN),
    "accumulated": ("experiment=main_task_small", *_DRAWN, "trainer.accumulate_grad_batches=2"),
    "three seeds": (*_REASONING, "seeds=3"),
    "three seeds that stop": (
        *_REASONING,
        "seeds=3",
        "trainer.check_val_every_n_epoch=2",
        "callbacks.eureka.threshold=0.5",
        "callbacks.eureka.stop_after=5",
    ),
}


def overrides(shape: str, runs: Path) -> list[str]:
    """Returns the command line of a shape, with its runs in ``runs``."""
    return [*SHAPES[shape], f"paths.runs={runs}", "threads=1"]
