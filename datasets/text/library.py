"""Libraries of the extra ``language``, which the lab does without where none of them is asked for."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from lab.console import not_installed


def library(name: str) -> Any:
    """Imports a library of the extra ``language``.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        found = import_module(name)
        if found.__file__ is None:  # without ``datasets``, the lab's folder of that name is found
            raise ImportError(name)
    except ImportError as error:
        raise ValueError(f"this needs {not_installed(name, 'language')}") from error
    return found


def hub_name_or_folder(name: str) -> str:
    """The name of something on the Hugging Face Hub, or the folder that holds it.

    Raises:
        ValueError: if the name is a path, and there is no such folder: it is no name that the Hub could know.
    """
    folder = os.path.expanduser(name)
    if os.path.isdir(folder):
        return folder
    if name.startswith((".", "~")) or os.path.isabs(name) or "\\" in name or name.count("/") > 1:
        raise ValueError("it is no folder")
    return name
