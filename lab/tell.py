"""What the lab says to its user: lines on stderr, from the first process alone, and tables on stdout."""

from __future__ import annotations

import os
import sys

from rich.console import Console


def tell(text: str) -> None:
    """Prints a line on stderr."""
    # Without Lightning there is one process; loading it only to say a line takes seconds.
    ranks = sys.modules.get("lightning.pytorch.utilities.rank_zero")
    if ranks is None or not getattr(ranks.rank_zero_only, "rank", 0):
        print(text, file=sys.stderr, flush=True)


def tables() -> Console:
    """Where tables are printed to; rich would fold all that goes into a file or a pipe to 80 columns."""
    return Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=150)
