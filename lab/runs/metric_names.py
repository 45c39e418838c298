"""Meaning of a metric's name: values of an accuracy lie in [0, 1] and are told in percent; a loss falls."""

from __future__ import annotations


def is_accuracy(metric: str) -> bool:
    """Tells whether a metric is an accuracy, of all answers or of a part of them."""
    return "accuracy" in metric


def falls(metric: str) -> bool:
    """Tells whether a metric falls as a model gets better: a loss does, an accuracy rises."""
    return "loss" in metric and not is_accuracy(metric)


def value_told(metric: str, value: float, digits: int = 1) -> str:
    """A metric's value in words: an accuracy in percent with so many digits, anything else as a number."""
    return f"{value:.{digits}%}" if is_accuracy(metric) else f"{value:.4g}"
