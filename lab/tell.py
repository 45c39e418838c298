"""What the lab says to its user while it works: one line on stderr, from the first process alone."""

from __future__ import annotations

import sys

from lightning.pytorch.utilities.rank_zero import rank_zero_only


@rank_zero_only
def tell(text: str) -> None:
    """Prints a line on stderr."""
    print(text, file=sys.stderr, flush=True)
