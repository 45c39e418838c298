"""The local learning coefficient of a checkpoint: how degenerate its loss is around it, by Langevin sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lab.console import LabError, not_installed
from lab.datasets.seeding import derived_seed
from lab.observation.gradients import TrainingState, next_steps


@dataclass(frozen=True)
class Sampling:
    """Settings of Langevin sampling around a checkpoint w*.

    A step moves w by epsilon / 2 (-n beta grad L(w) - gamma (w - w*)), and by noise of variance epsilon.

    Attributes:
        chains: number of samplings from the checkpoint, each with noise of its own.
        burn_in: number of steps before losses count. Where the loss has curvature h, a chain forgets its start in about
            2 / (epsilon (n beta h + gamma)) steps; with fewer the coefficient is too small. After them, near a minimum,
            the direction adds n beta h / (n beta h + gamma) / 2 to the coefficient.
        draws: number of steps whose losses count.
        step_size: epsilon.
        localization: gamma, the pull back to the checkpoint w*.
        samples: n; n beta is n / ln n. None is the number of training samples of an epoch.
        seed: seed of the noise.
    """

    chains: int = 4
    burn_in: int = 1500
    draws: int = 100
    step_size: float = 1e-5
    localization: float = 100.0
    samples: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Coefficient:
    """Local learning coefficient of a checkpoint.

    Attributes:
        of_chains: coefficient of each chain, [chains]; NaN where a loss of the chain was not finite.
        loss: mean loss at the checkpoint, over the batches of the draws.
        losses: loss of each step, [chains, burn_in + draws].
    """

    of_chains: NDArray[np.floating]
    loss: float
    losses: NDArray[np.floating]


def sampler_of_devinterp() -> Any:
    """Returns the function of ``devinterp`` that makes an optimiser that samples.

    Raises:
        LabError: if ``devinterp`` is missing.
    """
    try:
        from devinterp.optim import SGMCMC
    except ImportError as error:
        raise LabError(f"learning_coefficient needs {not_installed('devinterp', 'devinterp')}") from error
    return SGMCMC.sgld


def learning_coefficient(trained: TrainingState, sampling: Sampling) -> Coefficient:
    """Estimates n beta (mean loss of the draws - loss at the checkpoint), chain by chain, in float32.

    Source: Lau et al. 2023, "The Local Learning Coefficient: A Singularity-Aware Complexity Measure", Algorithm 1, with
    the sampler of ``devinterp``.

    Args:
        trained: the checkpoint, the run's own loss and the batches that it would train on next.
        sampling: settings of the sampler.

    Raises:
        LabError: if ``devinterp`` is missing, the data cannot be drawn by (epoch, batch), or n is below 2.
    """
    langevin = sampler_of_devinterp()
    steps = range(trained.step, trained.step + sampling.burn_in + sampling.draws)
    with next_steps(replace(trained, precision="32-true")) as copied:
        samples = sampling.samples or copied.batches_an_epoch * trained.samples_per_step // trained.accumulated
        if samples < 2:
            raise LabError(f"learning_coefficient needs two training samples or more, got {samples}")
        n_beta = samples / math.log(samples)
        model: Any = copied.module.model
        start = {name: value.clone() for name, value in model.state_dict().items()}
        with torch.no_grad():
            drawn = steps[sampling.burn_in :]
            loss = float(np.mean([float(sum(copied.losses(step))) / copied.whole(step) for step in drawn]))
        losses = np.full((sampling.chains, len(steps)), np.nan)
        for chain in range(sampling.chains):
            model.load_state_dict(start)
            sampler = langevin(
                [weight for weight in model.parameters() if weight.requires_grad],
                lr=sampling.step_size,
                localization=sampling.localization,
                nbeta=n_beta,
            )
            for place, step in enumerate(steps):
                sampler.zero_grad()
                total = 0.0
                for part in copied.losses(step):
                    own = part / copied.whole(step)
                    own.backward()
                    total += own.item()
                if not math.isfinite(total):
                    break
                losses[chain, place] = total
                # A training step is seeded by its place: without a seed per chain, all chains would have one noise.
                torch.manual_seed(derived_seed("langevin", sampling.seed, chain, step))
                sampler.step()
    return Coefficient(n_beta * (losses[:, sampling.burn_in :].mean(1) - loss), loss, losses)
