"""Parser for command lines without overrides: a wrong one is answered in one sentence, as wrong overrides are."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import NoReturn

from lab.console import tell


class Parser(ArgumentParser):
    """Parser that says what is wrong with a command line, without printing the usage first; exit status 2."""

    def error(self, message: str) -> NoReturn:
        """Ends the program."""
        tell(f"error: {message} ({self.prog} --help lists all options)")
        sys.exit(2)
