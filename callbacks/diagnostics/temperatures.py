"""Temperatures of every layer over training: scheduled, learned or fixed."""

from __future__ import annotations

import lightning as L
from lightning.pytorch.callbacks import Callback
from pydantic import PositiveInt

from lab.callbacks.access import model_of
from lab.models.observable import normalisers_of, rules_of


class Temperatures(Callback):
    """Logs what every temperature rule and normaliser reports of itself once an epoch, on rank 0.

    A scalar is logged as ``temperature/<name>/layer_<i>``; a vector (such as one value per head) as its mean and
    spread and, up to 32 values, also each as ``.../head_<h>``.

    Source: "Introducing a learnable temperature" shows mean and spread per layer.

    Args:
        every_n_epochs: cadence of logging.
    """

    def __init__(self, every_n_epochs: PositiveInt = 1) -> None:
        self.every_n_epochs = every_n_epochs

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if (trainer.current_epoch + 1) % self.every_n_epochs or not trainer.is_global_zero:
            return
        values: dict[str, float] = {}
        model = model_of(pl_module)
        for index, (rule, normaliser) in enumerate(zip(rules_of(model), normalisers_of(model), strict=True)):
            for name, value in {**rule.temperatures(), **normaliser.quantities()}.items():
                key = f"temperature/{name}/layer_{index}"
                numbers = value.float().flatten().tolist()
                if len(numbers) == 1:
                    values[key] = numbers[0]
                    continue
                values[f"{key}/mean"] = sum(numbers) / len(numbers)
                values[f"{key}/spread"] = float(value.float().std(correction=0))
                if len(numbers) <= 32:
                    values |= {f"{key}/head_{head}": number for head, number in enumerate(numbers)}
        for logger in trainer.loggers:
            logger.log_metrics({**values, "epoch": trainer.current_epoch}, step=trainer.global_step - 1)
