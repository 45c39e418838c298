"""The user's own code that a config names: its files, by their digests, so that a change does not go unseen."""

from __future__ import annotations

import hashlib
import site
import sysconfig
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Names, in sysconfig, of the folders of Python's own modules and of packages.
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")


def own_code(config: Mapping[str, Any]) -> dict[str, str]:
    """Digests of the files whose classes a config names, by module; files of installed packages and the lab's left out.

    Files that these import are not followed.

    Args:
        config: what is run, by dotted key (:func:`lab.config.identity.identity`).
    """
    named = {str(name).rpartition(".")[0] for key, name in config.items() if key.endswith("_target_")}
    files = {module: own_file(module) for module in sorted(named)}
    return {name: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for name, file in files.items() if file}


def own_file(module: str) -> Path | None:
    """The file of a module, if it is the user's own: neither the lab's, nor Python's, nor that of a package."""
    if not module or module.partition(".")[0] == "lab":
        return None
    try:
        spec = find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    path = Path(spec.origin).resolve()
    folders = [*site.getsitepackages(), *map(str, map(sysconfig.get_path, _INSTALLED))]
    installed = any(path.is_relative_to(Path(one).resolve()) for one in folders)
    return path if path.is_file() and not installed else None
