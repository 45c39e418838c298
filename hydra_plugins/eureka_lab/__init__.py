"""The lab's launcher and sweeper, where Hydra looks for plugins; the code is in ``lab.sweeps``.

Imports ``_slurm`` where it is asked for: it needs submitit, which not every installation has.
"""

from __future__ import annotations

import sys

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins

from hydra_plugins.eureka_lab._search import SearchSweeper
from lab.config.compose import CONFIGS
from lab.console import tell


def offer(arguments: list[str]) -> None:
    """Registers the sweeper of ``+sweep=search`` and ``hydra/launcher=slurm``.

    Exits with one sentence if a launcher is asked for whose plugin is missing.

    Hydra looks for plugins by itself, but not in packages that are installed with ``pip install -e``. The plugin's own
    name, ``hydra/launcher=submitit_slurm``, then means ``configs/hydra/launcher/slurm.yaml``, too.
    """
    plugins = Plugins.instance()
    plugins.register(SearchSweeper)
    try:
        from hydra_plugins.eureka_lab._slurm import SlurmLauncher
    except ModuleNotFoundError as error:
        ours = {path.stem for path in (CONFIGS / "hydra" / "launcher").glob("*.yaml")} | {"submitit_slurm"}
        for argument in arguments:
            if argument.startswith("hydra/launcher=") and argument.split("=", 1)[1] in ours:
                tell(f"error: {argument} needs {error.name}, which is not installed: pip install 'eureka-lab[slurm]'")
                sys.exit(1)
        return
    plugins.register(SlurmLauncher)
    # A file of that name would be held against the plugin's schema, which knows no null for tasks and nodes.
    ConfigStore.instance().store(group="hydra/launcher", name="submitit_slurm", node={"defaults": ["slurm"]})
