"""The only module that calls Hydra's private API, but for the plugin that Hydra loads anew (``hydra_plugins``).

What a new Hydra breaks is named by ``tests/lab/config/test_hydra_internals.py``.
"""

from __future__ import annotations

import os
import pickle
from argparse import ArgumentParser
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.defaults_list import Overrides, create_defaults_list
from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import FloatRange, Override
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict


def _as_typed(self: FloatRange) -> None:
    self.start, self.stop, self.step = (Decimal(str(one)) for one in (self.start, self.stop, self.step))


# Hydra takes the ends and the step of range(0.01,0.1,0.03) for binary numbers, which lie beside the typed ones: their
# sums do too (0.06999999999999999), and rounding would decide whether a range has its end.
FloatRange.__post_init__ = _as_typed  # type: ignore[method-assign]


def argument_parser() -> ArgumentParser:
    """Returns the parser of Hydra's own command line (``-m``, ``--cfg``, ``--config-dir``).

    It takes whole flags only: ``--experiment=reasoning`` would else be short for ``--experimental-rerun``.
    """
    parser = get_args_parser()
    parser.allow_abbrev = False
    return parser


def hydra() -> Hydra:
    """Returns the initialised Hydra.

    Raises:
        AssertionError: if none is initialised.
    """
    found = GlobalHydra.instance().hydra
    assert found is not None
    return found


def loader() -> ConfigLoader:
    """Returns the initialised Hydra's config loader."""
    return GlobalHydra.instance().config_loader()


def options_of(group: str) -> list[str]:
    """Returns the configs of a group that the initialised Hydra finds; none for what is no group."""
    return loader().get_group_options(group)


def keep_configs(folder: Path) -> None:
    """Makes the initialised Hydra compose each choice of configs in ``folder`` only once per process."""
    hydra().config_loader = _KeepingLoader(loader().get_search_path(), folder)


def prepend_to_search_path(path: str) -> None:
    """Makes the initialised Hydra look for configs in ``path``, too, as ``--config-dir`` does."""
    own: Any = loader()
    own.config_search_path.prepend("command-line", path, SearchPathQuery(provider="schema"))
    own.repository.initialize_sources(own.config_search_path)


def compose_multirun(overrides: Sequence[str]) -> DictConfig:
    """Composes ``configs/train.yaml`` as ``python -m lab.train -m`` does, Hydra's own settings included."""
    return hydra().compose_config("train", list(overrides), RunMode.MULTIRUN, with_log_configuration=False)


def keys_of(config: str) -> set[str]:
    """Returns the top-level keys of one config file, such as ``sweep/table_1``, that the initialised Hydra finds."""
    own: Any = loader()
    found = own.repository.load_config(config)
    return set() if found is None else set(found.config)


def search_path() -> list[str]:
    """Returns where the initialised Hydra looks for configs, the first place first, as ``file:///folder``."""
    own: Any = loader()
    return [str(one.path) for one in own.config_search_path.get_path() if one.path]


def split_into_jobs(overrides: list[Override]) -> Sequence[Sequence[str]]:
    """Splits the overrides of a sweep into those of each job, as Hydra's own sweeper does."""
    (jobs,) = BasicSweeper.split_arguments(overrides, None)
    return jobs


def error_of(job: JobReturn) -> Exception | None:
    """Returns the error of a job that failed. To read its ``return_value`` prints a line of Hydra's and raises it."""
    return job._return_value if job.status == JobStatus.FAILED else None


class _KeepingLoader(ConfigLoaderImpl):
    """Composes as Hydra does, but each choice of configs only once; values (``seed=3``) are set on a copy."""

    # Choice of configs -> composed config, until a file changes. A pickle is copied in a tenth of ``deepcopy``'s time.
    _kept: ClassVar[dict[Any, bytes]] = {}
    _files: ClassVar[list[tuple[str, int, int]]] = []

    def __init__(self, config_search_path: ConfigSearchPath, folder: Path) -> None:
        super().__init__(config_search_path)
        self.repository = _KeepingRepository(config_search_path, f"file://{folder}")
        self._path = list(config_search_path.get_path())
        found = [os.path.join(path, name) for path, _, names in os.walk(folder) for name in names]
        files = [(path, (stat := os.stat(path)).st_mtime_ns, stat.st_size) for path in found]
        if files != self._files:
            forget_composed()
            self._files[:] = files

    def _load_configuration_impl(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        options = (run_mode, from_shell, validate_sweep_overrides)
        typed = OverridesParser.create().parse_overrides(overrides)
        # Values of hydra.* may change how Hydra composes, and from which files: such configs are not kept.
        of_hydra = any(str(override.key_or_group).startswith("hydra.") for override in typed)
        swept = any(override.is_sweep_override() for override in typed)
        if run_mode != RunMode.RUN or of_hydra or swept or self.config_search_path.get_path() != self._path:
            return super()._load_configuration_impl(config_name, overrides, *options)
        values = Overrides(self.repository, typed).config_overrides
        chosen = tuple(str(one.input_line) for one in typed if all(one is not value for value in values))
        if (config_name, chosen) not in self._kept:
            whole = super()._load_configuration_impl(config_name, list(chosen), *options)
            self._kept[config_name, chosen] = pickle.dumps(whole)
        config: DictConfig = pickle.loads(self._kept[config_name, chosen])
        self._apply_overrides_to_config(values, config)
        # Values that depend on more than the choice of configs are set here, as Hydra sets them.
        own = config.hydra
        task = [override for override in typed if not override.is_hydra_override()]
        own.overrides.task = [override.input_line for override in task]
        named = own.job.config.override_dirname
        own.job.override_dirname = get_overrides_dirname(task, named.exclude_keys, named.item_sep, named.kv_sep)
        own.runtime.cwd = os.getcwd()
        with open_dict(own):
            own.job.env_set.update({key: os.environ[key] for key in own.job.env_copy})
        return config


class _KeepingRepository(ConfigRepository):
    """Reads each file of the lab's and of Hydra's own configs only once: of a config they are a third of the time."""

    _kept: ClassVar[dict[tuple[str, str], bytes]] = {}

    def __init__(self, config_search_path: ConfigSearchPath, folder: str) -> None:
        super().__init__(config_search_path)
        self._places = (folder, "pkg://hydra.conf")

    def load_config(self, config_path: str) -> ConfigResult | None:
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or source.full_path() not in self._places:
            return super().load_config(config_path)
        key = (source.full_path(), config_path)
        if key not in self._kept:
            self._kept[key] = pickle.dumps(super().load_config(config_path))
        found: ConfigResult = pickle.loads(self._kept[key])
        return found


def forget_composed() -> None:
    """Composes each choice of configs anew, after a config was stored in Hydra's ``ConfigStore``."""
    _KeepingLoader._kept.clear()
    _KeepingRepository._kept.clear()


class Choices:
    """Tells which configs some overrides choose, without composing them, which takes four times as long."""

    def __init__(self, config_name: str) -> None:
        self._config_name = config_name
        # Cached: every file of configs/ is read only once.
        own: Any = loader()
        self._repository = CachingConfigRepository(own.repository)

    def of(self, overrides: list[Override]) -> dict[str, str | None]:
        """Returns group -> chosen config."""
        found = create_defaults_list(self._repository, self._config_name, overrides, True, False)
        return found.overrides.known_choices
