"""The next-token loss of another library's causal language model, on the texts that it is shown."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from lab.datasets.given import GivenData
from lab.datasets.loading import Batch
from lab.models.observable import OtherModel
from lab.observation.gradients import SeededModule, TrainingState


class NextToken(SeededModule):
    """A causal language model with its cross-entropy of the next token, averaged over tokens.

    Args:
        model: a model whose output has ``logits`` [B, N, vocabulary] for tokens [B, N].
    """

    def __init__(self, model: OtherModel) -> None:
        super().__init__()
        self.model = model

    def seed_step(self, epoch: int, batch_idx: int) -> None:
        """Does nothing: the model is looked at without dropout."""

    def train(self, mode: bool = True) -> NextToken:
        """Stays in evaluation mode: without dropout, every look gives the same result."""
        return super().train(False)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the loss of a batch."""
        x_BN = batch["x"]
        logits_BNC = self.model(x_BN).logits
        return F.cross_entropy(logits_BNC[:, :-1].flatten(0, 1).float(), x_BN[:, 1:].flatten())


def as_trained(model: OtherModel, data: GivenData) -> TrainingState:
    """The model as a training state, with these texts as its next training batches."""
    return TrainingState(NextToken(model), data, step=0)
