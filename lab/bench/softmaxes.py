"""Softmaxes by name: one of ``configs/softmax``, or a class of the user's own such as ``my_rules.Mine``."""

from __future__ import annotations

from hydra.utils import get_object

from lab.attention.normaliser import Normaliser
from lab.bench.cases import HEAD_DIM, HEADS, TOKENS
from lab.console import blamed
from lab.models.composed_softmax import softmax_config, softmax_factory
from lab.models.softmaxes import SoftmaxFactory, make_softmaxes

# By default it adapts at inference only, which a training step would never see.
_OPTIONS = {"adaptive_temperature": ("softmax.when=always",)}


def composed_of(name: str) -> tuple[str, ...]:
    """The config of a softmax and the overrides of it that ``name`` means, as ``softmax_config`` takes them.

    A rule of the user's own takes the place of plain softmax's, a normaliser that of its normaliser.

    Raises:
        LabError: if ``name`` has a dot and is no class that can be imported.
    """
    if "." not in name:
        return name, *_OPTIONS.get(name, ())
    # A class may do without tau, and Hydra takes away only what is not null.
    rule = ("softmax", "softmax.tau=1", "~softmax.tau", f"softmax._target_={name}")
    own = get_object(softmax_config(*rule)._target_)
    if isinstance(own, type) and issubclass(own, Normaliser):
        return "softmax", f"softmax.normaliser={{_target_: {name}, _partial_: true}}"
    return rule


def softmax_of(name: str, *overrides: str) -> SoftmaxFactory:
    """Makes the rules and normalisers of a softmax; ``overrides`` may name an experiment with defaults of its own.

    Raises:
        LabError: if there is no such softmax.
    """
    return softmax_factory(softmax_config(*composed_of(name), *overrides))


def check_softmax(name: str) -> None:
    """Makes the softmax of one layer and tries it, as a model does.

    Raises:
        LabError: if there is no such softmax, or its code fails.
        ValueError: if it breaks the contract of rules and normalisers.
    """
    with blamed(f"{name} cannot be made"):
        next(make_softmaxes(softmax_of(name), HEADS, HEAD_DIM, trained_length=TOKENS[0]))
