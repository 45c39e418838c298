"""The lab's launcher and sweepers, where Hydra looks for plugins; the code is in ``lab.sweeps``.

``_slurm`` is imported only in :func:`offer`: it needs submitit, which not every installation has.
"""

from __future__ import annotations

import sys

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins

from hydra_plugins.eureka_lab._basic import BasicSweeper, Options
from hydra_plugins.eureka_lab._search import SearchSweeper
from lab.config.compose import CONFIGS
from lab.config.hydra_internals import forget_composed
from lab.console import not_installed, tell


def offer(arguments: list[str]) -> None:
    """Registers the sweepers, that of ``+sweep=search`` and that of plain sweeps, and ``hydra/launcher=slurm``.

    Exits with one sentence if a launcher is asked for whose plugin is missing.

    Hydra finds plugins by itself, but not in packages that are installed with ``pip install -e``. The submitit
    plugin's own name, ``hydra/launcher=submitit_slurm``, then also means ``configs/hydra/launcher/slurm.yaml``.
    """
    forget_composed()
    plugins = Plugins.instance()
    plugins.register(SearchSweeper)
    plugins.register(BasicSweeper)
    # In place of Hydra's own, which it has stored as it found its plugins.
    ConfigStore.instance().store(group="hydra/sweeper", name="basic", node=Options)
    try:
        from hydra_plugins.eureka_lab._slurm import SlurmLauncher
    except ModuleNotFoundError as error:
        ours = {path.stem for path in (CONFIGS / "hydra" / "launcher").glob("*.yaml")} | {"submitit_slurm"}
        for argument in arguments:
            if argument.startswith("hydra/launcher=") and argument.split("=", 1)[1] in ours:
                tell(f"error: {argument} needs {not_installed(str(error.name), 'slurm')}")
                sys.exit(1)
        return
    plugins.register(SlurmLauncher)
    # Not a file of that name: Hydra would check it by the plugin's schema, which allows no null for tasks and nodes.
    ConfigStore.instance().store(group="hydra/launcher", name="submitit_slurm", node={"defaults": ["slurm"]})
