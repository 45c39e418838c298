"""What the lab says to its user while it works: one line on stderr, from the first process alone."""

from __future__ import annotations

import sys


def tell(text: str) -> None:
    """Prints a line on stderr."""
    # Without Lightning there is one process; loading it only to say a line takes seconds.
    ranks = sys.modules.get("lightning.pytorch.utilities.rank_zero")
    if ranks is None or not getattr(ranks.rank_zero_only, "rank", 0):
        print(text, file=sys.stderr, flush=True)
