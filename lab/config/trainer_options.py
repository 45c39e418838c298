"""Ranges of the options of Lightning's trainer, whose own annotations give only types."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning.pytorch.strategies import StrategyRegistry
from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from pydantic_core import PydanticCustomError


def _text(pattern: str, must: str) -> Any:
    """The annotation of a text that must match a pattern; ``must`` says in words what it must be."""

    def read(value: object) -> object:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise PydanticCustomError("text", "{must}", {"must": must})
        return value

    return Annotated[str, BeforeValidator(read)]


def _only(value: float, instead: str) -> Any:
    """The annotation of a value that may not be changed, nor its type; ``instead`` says what to use in its place."""

    def read(given: float) -> float:
        if given != value or type(given) is not type(value):
            raise PydanticCustomError("only", "{must}", {"must": f"be {str(value).lower()}: {instead}"})
        return given

    return Annotated[bool | int | float, AfterValidator(read)]


def _some_time(given: str | dict[str, int]) -> str | dict[str, int]:
    """Refuses a length of time of zero, after which a run would count as finished before its first step."""
    if not any(given.values() if isinstance(given, dict) else map(int, given.split(":"))):
        raise PydanticCustomError("time", "be longer than no time at all; null sets no limit")
    return given


# Strategies that copy this process, which holds the run folder, or that need TPUs.
_OTHERS = re.compile("spawn|fork|notebook|xla")
_Batches = PositiveInt | Annotated[float, Field(gt=0, le=1)] | None
# Options that the lab itself hands to the trainer: a config may only have null here.
_Given = None

OPTIONS: dict[str, Any] = {
    "accelerator": Literal[("auto", "gpu", *sorted(AcceleratorRegistry.available_accelerators()))],
    "strategy": Literal[("auto", *(one for one in StrategyRegistry.available_strategies() if not _OTHERS.search(one)))],
    "devices": PositiveInt
    | Literal[-1]
    | Annotated[list[NonNegativeInt], Field(min_length=1)]
    | _text(r"auto|-1|0*[1-9]\d*|\d+(, ?\d+)+", "be auto or a number"),
    "num_nodes": PositiveInt,
    "max_epochs": PositiveInt,
    "min_epochs": PositiveInt | None,
    "max_steps": PositiveInt | Literal[-1],
    "min_steps": PositiveInt | None,
    "max_time": Annotated[
        _text(r"\d+:\d\d:\d\d:\d\d", "be days:hours:minutes:seconds, as 00:12:30:00")
        | dict[Literal["weeks", "days", "hours", "minutes", "seconds"], NonNegativeInt],
        AfterValidator(_some_time),
    ]
    | None,
    "limit_train_batches": _Batches,
    "limit_val_batches": _Batches,
    # The lab neither tests nor predicts, and says itself where files lie.
    "limit_test_batches": None,
    "limit_predict_batches": None,
    "default_root_dir": None,
    "model_registry": None,
    "enable_autolog_hparams": None,
    "enable_checkpointing": _only(True, "checkpoints.every_minutes=1e6 saves at the end alone") | None,
    "fast_dev_run": _only(False, "debug=fast is a short run that is kept"),
    "overfit_batches": _only(0, "trainer.limit_train_batches trains on a few batches"),
    # If a run was saved at a validation within an epoch, Lightning does not repeat it on resuming: it would be missed.
    # A whole number would count batches.
    "val_check_interval": _only(1.0, "a run validates at the end of its epochs; shorter ones validate more often")
    | None,
    "check_val_every_n_epoch": PositiveInt,
    "num_sanity_val_steps": Annotated[int, Field(ge=-1)] | None,
    "log_every_n_steps": NonNegativeInt | None,
    "accumulate_grad_batches": PositiveInt,
    "gradient_clip_val": NonNegativeFloat | None,
    "gradient_clip_algorithm": Literal["norm", "value"] | None,
    "profiler": Literal["simple", "advanced", "pytorch", "xla"] | None,
    "reload_dataloaders_every_n_epochs": NonNegativeInt,
    "callbacks": _Given,
    "logger": _Given,
    "plugins": _Given,
}
