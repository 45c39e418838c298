"""Command lines that are no overrides: a wrong one is answered in one sentence, as overrides are."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import NoReturn

from lab.console import tell


class Parser(ArgumentParser):
    """Parser that says what is wrong with a command line, without the usage before it; exit status 2."""

    def error(self, message: str) -> NoReturn:
        """Ends the program."""
        tell(f"error: {message} ({self.prog} --help lists all options)")
        sys.exit(2)
