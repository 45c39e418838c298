"""Rows of the atlas: softmaxes, each as it is typed."""

from __future__ import annotations

from dataclasses import dataclass

from lab.config.compose import CONFIGS

# The softmax that all others are compared with.
PLAIN = "softmax"
# Further settings of softmaxes: the name of a config, followed by overrides.
VARIANTS = (
    "softmax softmax.tau=1",
    "norm_softmax softmax.statistic=range",
    "norm_softmax softmax.statistic=mad",
    "norm_softmax softmax.statistic=max",
    "softmax_plus_one softmax.normaliser.bias=learned",
    "softmax_plus_one softmax.normaliser.bias=length",
    "log_length softmax.form=log_n",
)
# The order in which cells are trained, the most informative first. Rows not named here follow, by name.
FIRST = (
    "softmax",
    "norm_softmax",
    "heat_treatment",
    "softmax softmax.tau=1",
    "query_key_norm",
    "softmax_plus_one",
    "learnable_temperature",
    "sigmoid",
    "softmax_plus_one softmax.normaliser.bias=learned",
    "entropy_scaled",
    "log_length",
    "norm_softmax_heat_treatment",
    "linear",
    "hard",
)


@dataclass(frozen=True)
class Row:
    """A softmax with its options.

    Attributes:
        typed: name and overrides, separated by spaces.
    """

    typed: str

    @property
    def softmax(self) -> str:
        """The chosen ``softmax`` config."""
        return self.typed.split()[0]

    @property
    def overrides(self) -> tuple[str, ...]:
        """Overrides to train with it."""
        name, *options = self.typed.split()
        return (f"softmax={name}", *options)

    def __str__(self) -> str:
        name, *options = self.typed.split()
        return ", ".join([name, *(option.removeprefix("softmax.") for option in options)])


def all_rows() -> list[Row]:
    """Every softmax that has a config, and the variants, in the order in which they are trained."""
    names = [path.stem for path in sorted((CONFIGS / "softmax").glob("*.yaml"))]
    typed = sorted([*names, *VARIANTS], key=lambda one: (FIRST.index(one) if one in FIRST else len(FIRST), one))
    return [Row(one) for one in typed]
