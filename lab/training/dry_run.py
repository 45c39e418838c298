"""Tries two samples before training: data, model, loss and metrics must fit each other."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning_utilities import apply_to_collection
from torch import Tensor, nn

from lab.console import LabError, blamed, name_of
from lab.datasets.contract import check_data
from lab.datasets.loading import Batch, DataModule, data_of
from lab.observation.recorder import evaluating, own_random_numbers
from lab.training.module import TwoStepModule
from lab.training.unsaved import tell_unsaved

_SAMPLES = 2


class DryRun(Callback):
    """Tries a module on its data when fitting begins; comes before callbacks that look at the data.

    Args:
        module: one whose trainer is known by then.
    """

    def __init__(self, module: TwoStepModule) -> None:
        self.module = module

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        dry_run(self.module)


def dry_run(module: TwoStepModule) -> None:
    """Checks the data, and takes the first samples through model, loss and metrics; nothing of them changes.

    Raises:
        LabError: if they do not fit each other; says what does not.
    """
    data = data_of(module.trainer)
    first = check_data(data)
    # Strategies that share out a model's weights over processes cannot run it outside of a training step.
    if type(module.trainer.strategy) not in (SingleDeviceStrategy, DDPStrategy):
        return
    for name, batch in first._asdict().items():
        few = move_data_to_device(_few(batch), module.device)
        logits = _logits(module, few)
        loss = _loss(module, logits, few)
        with blamed(f"{name_of(type(module.model))} fails in the backward pass of two samples"):
            weights = [one for one in module.model.parameters() if one.requires_grad]
            # Not backward(): the parameters' gradients stay as they are.
            torch.autograd.grad(loss, weights, allow_unused=True)
        if name == "validation":
            _check_scored(data, logits, few)
        else:
            _tell_unsaved(module, few)


def _few(batch: Batch) -> Any:
    """The first samples of a batch."""
    size = len(batch["y"])
    return apply_to_collection(batch, Tensor, lambda one: one[:_SAMPLES] if one.shape[:1] == (size,) else one)


def _logits(module: TwoStepModule, batch: Batch) -> Tensor:
    """The logits of a batch in eval mode, uncompiled, after a check of their shape and gradient."""
    model, plugin, device = module.model, module.trainer.precision_plugin, module.device
    kind = name_of(type(module.model))
    with (
        own_random_numbers(device),
        _uncompiled(),
        torch.enable_grad(),
        evaluating(model),
        plugin.forward_context(),
        blamed(f"{kind} fails on two samples"),
    ):
        logits: object = model.forward(plugin.convert_input(batch)["x"])
    classes = data_of(module.trainer).model_arguments()["num_classes"]
    wanted = [*batch["y"].shape, classes]
    if not isinstance(logits, Tensor) or list(logits.shape) != wanted or not logits.is_floating_point():
        got = f"{list(logits.shape)} {logits.dtype}" if isinstance(logits, Tensor) else type(logits).__name__
        raise LabError(f"{kind} gives {got} for two samples, where logits {wanted} are needed, one for each label")
    if not logits.isfinite().all():
        raise LabError(f"{kind} gives NaN or infinity for two samples, before any step of this training")
    if not logits.requires_grad:
        raise LabError(f"{kind} cannot be trained: no gradient goes from its logits to its parameters")
    return logits


def _tell_unsaved(module: TwoStepModule, batch: Any) -> None:
    """Tells what a training step changes in the user's own modules that no checkpoint holds."""
    plugin = module.trainer.precision_plugin

    def step(model: nn.Module) -> None:
        model(plugin.convert_input(batch)["x"])

    with own_random_numbers(module.device), _uncompiled(), torch.no_grad(), plugin.forward_context():
        tell_unsaved(module.model, step)


def _loss(module: TwoStepModule, logits: Tensor, batch: Batch) -> Tensor:
    """The loss of a batch, as in training and as in validation, after a check that it can be trained on."""
    where = f"{name_of(type(module.optim))}.loss"
    with blamed(f"{where} fails on two samples"):
        losses: list[object] = [module.loss(logits, batch["y"]), module.optim.loss(logits, batch["y"])]
    for loss in losses:
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            got = f"{list(loss.shape)} {loss.dtype}" if isinstance(loss, Tensor) else type(loss).__name__
            raise LabError(f"{where} gives {got} for two samples, where one number is needed, such as their mean")
    trained = losses[0]
    assert isinstance(trained, Tensor)
    if not trained.requires_grad:
        raise LabError(f"{where} cannot be trained on: no gradient goes from it to the logits")
    return trained


def _uncompiled() -> AbstractContextManager[Any]:
    """Runs compiled functions as they are written: compiled for two samples first, they would be slower for many."""
    # To load the compiler takes a second, and where it is not loaded nothing is compiled.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def _check_scored(data: DataModule, logits: Tensor, batch: Batch) -> None:
    """Checks what validation metrics are computed from."""
    where = f"{name_of(type(data))}.scored"
    with blamed(f"{where} fails on two samples"):
        scored = data.scored(logits, batch)
    for name, (answers, labels, counted) in scored.items():
        if name and name not in data.accuracies:
            raise LabError(f"{where} gives an accuracy {name!r}, which is not among accuracies: {data.accuracies}")
        shapes = [list(one.shape) for one in (labels, counted) if one is not None]
        if any(shape != list(answers.shape[:-1]) for shape in shapes):
            raise LabError(f"{where} gives {list(answers.shape)} logits for {name!r}, but labels and mask of {shapes}")
