"""Checks the name of a metric before anything is trained."""

from __future__ import annotations

import lightning as L

from lab.config.compose import choices
from lab.console import LabError


def check_metric(key: str, name: str, module: L.LightningModule, of: str = "") -> None:
    """That the module logs a metric of this name; a module that does not list its ``metric_names`` passes.

    Args:
        key: the option, as it is typed.
        name: its value.
        module: what is trained.
        of: how the name has to begin.

    Raises:
        LabError: if it is not logged.
    """
    valid = [one for one in getattr(module, "metric_names", ()) if one.startswith(of)]
    if valid and name not in valid:
        raise LabError(f"{key}={name} is not logged; {choices(name, valid)}")
