"""The optimiser's settings, and the optimiser and schedule that timm's factories make of them."""

from __future__ import annotations

import difflib
import inspect
import math
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from timm.optim import create_optimizer_v2, get_optimizer_class, list_optimizers, param_groups_weight_decay
from timm.scheduler import PlateauLRScheduler, create_scheduler_v2
from timm.scheduler.scheduler import Scheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from lab.attention.precision import at_least_float32
from lab.console import LabError, blamed, name_of
from lab.models.observable import observable

# Optimisers of timm that update each number by itself, so that models in one tensor do not affect each other.
_ELEMENTWISE = ("adam", "adamw", "nadam", "nadamw", "radam", "adamax", "sgd", "nesterov", "momentum", "rmsprop", "lion")
# Options of optimisers that are elementwise without them, and what they take over all numbers of a parameter.
_OF_A_PARAMETER = {"caution": "mean", "clipping_threshold": "root mean square"}
# The methods that a subclass may have of its own: what they take, with how many arguments the lab calls them, and the
# options that the lab's own method reads.
OWN_METHODS = {
    "optimizer": ("groups, samples_per_step, may_fuse", (3,), ("name", "options", "lr", "lr_reference_batch")),
    "scheduler": ("optimizer, epochs", (2,), ("schedule", "min_lr", "warmup_lr", "warmup_epochs", "warmup_steps")),
    "loss": ("logits, target, label_smoothing=0.0", (2, 3), ("label_smoothing",)),
}


@dataclass(frozen=True)
class OptimConfig:
    """Settings of optimiser, learning-rate schedule and loss.

    Source: Eureka-moments in Transformers, A.14 (vision) and A.16 (reasoning); docs/published_runs.md, "Main task".

    Args:
        name: an optimiser of ``timm.optim``.
        lr: learning rate at which a schedule starts, if there is no warm-up (``linear`` and ``cosine`` have come down
            a little where a warm-up ends); for ``lr_reference_batch`` samples a step, where that is set.
        lr_reference_batch: the learning rate is scaled by (samples per step) / ``lr_reference_batch``; None: unscaled.
        min_lr: learning rate at the schedule's end.
        warmup_lr: learning rate at the start of the linear warm-up.
        warmup_epochs: length of the warm-up in epochs.
        warmup_steps: length of the warm-up in steps, W, for ``inverse_sqrt`` only.
        schedule: a schedule of ``timm.scheduler`` that goes by epochs, or a ``linear`` decay; ``none`` keeps ``lr``
            after the warm-up; ``inverse_sqrt`` goes by steps t: ``lr`` sqrt(W / t) after the warm-up; ``rsqrt`` does so
            by epochs, times a factor that takes it to ``min_lr`` over the last fifth of those after the warm-up.
        weight_decay: of the weights themselves (decoupled) under ``adamw`` and ``lion``, else a term of the gradient.
        decay_matrices_only: no decay on biases, norms and what the model's ``no_weight_decay`` names; False: on all but
            what rules and normalisers learn.
        label_smoothing: of the training loss, in [0, 1).
        loss_precision: of the training loss: "float64", since float32 rounds small losses (Nanda et al. 2023); None is
            that of the logits, float32 at least.
        options: passed to the optimiser (betas, eps, ...).

    Attributes:
        elementwise: set True by a subclass with an :meth:`optimizer` of its own that updates each number by itself, so
            that the seeds of ``seeds=`` can share its tensors.

    Raises:
        ValueError: if there is no such optimiser, it does not take these options, or the warm-up is not given in the
            schedule's unit (epochs or steps).
        LabError: if a method of a subclass does not take what the lab calls it with, or its optimiser fails.
    """

    elementwise: ClassVar[bool] = False

    lr: PositiveFloat
    name: str = "adamw"
    lr_reference_batch: PositiveInt | None = None
    min_lr: NonNegativeFloat = 0.0
    warmup_lr: NonNegativeFloat = 1e-6
    warmup_epochs: NonNegativeInt = 0
    warmup_steps: NonNegativeInt = 0
    schedule: Literal["cosine", "tanh", "rsqrt", "constant", "linear", "inverse_sqrt", "none"] = "cosine"
    weight_decay: NonNegativeFloat = 0.0
    decay_matrices_only: bool = True
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    loss_precision: Literal["float64"] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = [str(name) for name in list_optimizers()]
        if self.name.lower().removeprefix("lookahead_") not in known:
            close = difflib.get_close_matches(self.name, known, n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise ValueError(f"optim.name={self.name} is no optimiser of timm.optim{hint}")
        if self.schedule == "inverse_sqrt" and (self.warmup_epochs or not self.warmup_steps):
            raise ValueError(
                "optim.schedule=inverse_sqrt goes by steps: give ++optim.warmup_steps=, and no warmup_epochs"
            )
        if self.schedule != "inverse_sqrt" and self.warmup_steps:
            raise ValueError(
                f"optim.schedule={self.schedule} goes by epochs: give optim.warmup_epochs, not warmup_steps"
            )
        if self.min_lr > self.lr:
            raise ValueError(
                f"optim.min_lr={self.min_lr:g} is above optim.lr={self.lr:g}: a schedule ends at its least"
            )
        if self.schedule in ("none", "constant") and self.min_lr:
            raise ValueError(
                f"optim.schedule={self.schedule} keeps the learning rate: leave optim.min_lr={self.min_lr:g} out"
            )
        if self.schedule == "rsqrt" and not self.warmup_epochs:
            raise ValueError("optim.schedule=rsqrt falls from the end of the warm-up on: give optim.warmup_epochs")
        self._check_calls()
        # Tried on a dummy weight, so that a wrong option is reported before a model is built.
        tried = self.made_optimizer(dummy_groups(), samples_per_step=1)
        if getattr(tried, "is_second_order", False):
            raise ValueError(f"optim.name={self.name} needs second derivatives, which a training step does not keep")

    @property
    def goes_by_epoch(self) -> bool:
        """True if the learning rate depends on how many epochs there are."""
        return self.schedule in ("cosine", "tanh", "rsqrt", "linear")

    def scaled_lr(self, samples_per_step: int) -> float:
        """Maximum learning rate for this many samples a step."""
        if self.lr_reference_batch is None:
            return self.lr
        return self.lr * samples_per_step / self.lr_reference_batch

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """The trained parameters of ``model`` in groups, each with its weight decay."""
        known = observable(model)
        if not (self.decay_matrices_only and self.weight_decay):
            trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
            # What rules and normalisers learn means something at its own scale, and is not pulled to 0.
            names = known.softmax_parameters() if known is not None and self.weight_decay else set()
            own = [parameter for name, parameter in trained.items() if name in names]
            rest = [parameter for name, parameter in trained.items() if name not in names]
            learned = [{"params": own, "weight_decay": 0.0}] if own else []
            return [{"params": rest, "weight_decay": self.weight_decay}, *learned]
        # Models of timm have it, too.
        named = (getattr(one, "no_weight_decay", None) for one in (known, model))
        spared = {name for names in named if callable(names) for name in names()}
        return param_groups_weight_decay(model, self.weight_decay, no_weight_decay_list=spared)

    def optimizer(self, groups: list[dict[str, Any]], samples_per_step: int, may_fuse: bool = True) -> Optimizer:
        """The optimiser of these parameter groups; one kernel updates all of a parameter where it ``may_fuse``.

        A subclass with an optimiser of its own overrides this.

        Args:
            groups: as in ``torch.optim``, each with its ``weight_decay``.
            samples_per_step: for :meth:`scaled_lr`, the learning rate.
            may_fuse: False where gradients are unscaled or clipped before the step.
        """
        lr = self.scaled_lr(samples_per_step)
        options = dict(self.options)
        if not may_fuse:
            options.pop("fused", None)
        elif not {"fused", "foreach", "differentiable"} & options.keys():
            options |= {"fused": True} if _fuses(self.name) else {}
        try:
            return create_optimizer_v2(groups, opt=self.name, lr=lr, weight_decay=0.0, **options)
        except (TypeError, ValueError, AssertionError, IndexError) as error:
            why = "a list in them is too short" if isinstance(error, IndexError) else error
            raise ValueError(
                f"optim.options {self.options} do not fit optim.name={self.name}: {why}; "
                "~optim.options leaves them all out, ~optim.options.<name> one of them"
            ) from error

    def loss(self, logits: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Mean cross-entropy over all answers of a batch, in float32 or, for float64 logits, in float64.

        A subclass with a loss of its own overrides this. Labels are classes under any loss: accuracies need them.

        Args:
            logits: [B, classes] or [B, answers, classes].
            target: [B] or [B, answers] int64; :data:`lab.datasets.loading.IGNORED` where nothing is asked.
            label_smoothing: in [0, 1); 0 in validation.
        """
        precise = at_least_float32(logits)[0]
        return F.cross_entropy(precise.flatten(0, -2), target.flatten(), label_smoothing=label_smoothing)

    def made_optimizer(self, groups: list[dict[str, Any]], samples_per_step: int, may_fuse: bool = True) -> Optimizer:
        """The optimiser of :meth:`optimizer`, whose arguments it takes; it may be that of a subclass.

        Raises:
            LabError: if the method fails or returns something else.
        """
        with blamed(f"the optimiser of {name_of(type(self))} fails"):
            made: object = self.optimizer(groups, samples_per_step, may_fuse)
        if not isinstance(made, Optimizer):
            raise LabError(
                f"{name_of(type(self))}.optimizer gives a {type(made).__name__}: let it return a torch.optim.Optimizer"
            )
        return made

    def made_scheduler(self, optimizer: Optimizer, epochs: int) -> Scheduler | LRScheduler | None:
        """The schedule of :meth:`scheduler`, whose arguments it takes; it may be that of a subclass.

        Raises:
            LabError: if the method fails or returns something else.
        """
        with blamed(f"the schedule of {name_of(type(self))} fails"):
            made: object = self.scheduler(optimizer, epochs)
        return self.check_schedule(made)

    def check_schedule(self, made: object) -> Scheduler | LRScheduler | None:
        """Returns what :meth:`scheduler` has made.

        Raises:
            LabError: if the lab cannot use it.
        """
        where = f"{name_of(type(self))}.scheduler gives a {type(made).__name__}"
        if isinstance(made, ReduceLROnPlateau | PlateauLRScheduler):
            raise LabError(
                f"{where}, which waits for a metric, and the lab gives it none: let it return a schedule that goes by "
                "steps or epochs"
            )
        if made is not None and not isinstance(made, LRScheduler | Scheduler):
            raise LabError(f"{where}: let it return a schedule of torch.optim.lr_scheduler or timm.scheduler, or None")
        return made

    def _check_calls(self) -> None:
        """Refuses a method of a subclass that does not take what the lab calls it with."""
        for name, (wanted, numbers, _) in OWN_METHODS.items():
            signature = inspect.signature(getattr(self, name))
            try:
                for number in numbers:
                    signature.bind(*range(number))
            except TypeError as error:
                raise LabError(
                    f"{name_of(type(self))}.{name} does not take what the lab calls it with: begin it with "
                    f"def {name}(self, {wanted})"
                ) from error

    @property
    def own_loss(self) -> bool:
        """True if a subclass has a loss of its own in place of cross-entropy."""
        return type(self).loss is not OptimConfig.loss

    def check_elementwise(self) -> None:
        """Refuses an optimiser whose update of a number depends on others: it would mix seeds that share tensors.

        Raises:
            LabError: if it is one, or may be one.
        """
        if type(self).optimizer is not OptimConfig.optimizer:
            if self.elementwise:
                return
            raise LabError(
                f"seeds needs an optimiser that updates each number independently: if that of {name_of(type(self))} "
                "does, write elementwise = True in the class, else run seeds one by one"
            )
        if self.name.lower() not in _ELEMENTWISE:
            raise LabError(
                f"seeds needs an optimiser that updates each number independently ({', '.join(_ELEMENTWISE)}), not "
                f"{self.name}"
            )
        for option, what in _OF_A_PARAMETER.items():
            if self.options.get(option):
                raise LabError(
                    f"optim.options.{option} uses the {what} over a parameter, which under seeds= would mix models: "
                    "leave it out, or run seeds one by one"
                )

    def scheduler(self, optimizer: Optimizer, epochs: int) -> Scheduler | LRScheduler | None:
        """The learning-rate schedule, timm's by epoch or torch's by step; None where the rate is constant.

        A subclass with a schedule of its own overrides this.
        """
        if self.schedule == "inverse_sqrt":
            lr = optimizer.param_groups[0]["lr"]
            return LambdaLR(optimizer, lambda steps: self._inverse_sqrt(steps + 1, lr) / lr)
        scaled = optimizer.param_groups[0]["lr"]
        if self.min_lr > scaled:
            raise ValueError(
                f"optim.min_lr={self.min_lr:g} is above {scaled:g}, the learning rate of this batch size "
                f"(optim.lr={self.lr:g} is for {self.lr_reference_batch} samples): lower it likewise"
            )
        # timm's "none" would skip the warm-up; its "step" schedule with a decay of 1 includes it.
        if self.schedule == "tanh" and self.warmup_epochs >= epochs:
            raise ValueError(
                f"optim.schedule=tanh does not fit {epochs} epochs with optim.warmup_epochs={self.warmup_epochs}: it "
                "warms up towards the rate of the epoch after the warm-up"
            )
        warms_only = self.schedule == "none" and self.warmup_epochs > 0
        try:
            scheduler, _ = create_scheduler_v2(
                optimizer,
                # timm's "poly" is linear at a power of 1, which is its decay_rate.
                sched="step" if warms_only else "poly" if self.schedule == "linear" else self.schedule,
                decay_rate=1.0 if warms_only or self.schedule == "linear" else 0.1,
                num_epochs=epochs,
                min_lr=self.min_lr,
                warmup_lr=self.warmup_lr,
                warmup_epochs=self.warmup_epochs,
            )
        except ValueError as error:
            raise ValueError(
                f"optim.schedule={self.schedule} does not fit {epochs} epochs with optim.warmup_epochs="
                f"{self.warmup_epochs}: {error}"
            ) from error
        return scheduler

    def _inverse_sqrt(self, step: int, lr: float) -> float:
        """The learning rate of a step, 1 being the first (Eureka-moments in Transformers, A.19)."""
        if step < self.warmup_steps:
            return self.warmup_lr + (lr - self.warmup_lr) * step / self.warmup_steps
        return max(self.min_lr, lr * math.sqrt(self.warmup_steps / step))


def dummy_groups() -> list[dict[str, Any]]:
    """Parameter groups of one small weight, to try an optimiser on."""
    return [{"params": [nn.Parameter(torch.zeros(2, 2))], "weight_decay": 0.0}]


def _fuses(name: str) -> bool:
    """True if an optimiser has a fused version, which updates all of a parameter's numbers in one kernel."""
    with suppress(ValueError):  # the name is not that of one class, as under "lookahead_"
        return "fused" in inspect.signature(get_optimizer_class(name, bind_defaults=False)).parameters
    return False
