"""The user's own code that a config names: its files, by their digests, so that a change does not go unseen."""

from __future__ import annotations

import hashlib
import site
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lab.config.identity import flatten

# Names, in sysconfig, of the folders of Python's own modules and of packages.
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")


def own_code(config: Mapping[str, Any]) -> dict[str, str]:
    """Digests of the files whose classes a config names, by module; files of installed packages and the lab's left out.

    Files that these import are not followed.

    Args:
        config: a resolved configuration as plain values.
    """
    found = {}
    for key, name in flatten(dict(config)).items():
        if key.endswith("_target_") and isinstance(name, str) and (path := _own_file(name.rpartition(".")[0])):
            with suppress(OSError):
                found[name.rpartition(".")[0]] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return found


def _own_file(module: str) -> Path | None:
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
    return None if any(path.is_relative_to(Path(one).resolve()) for one in folders) else path
