"""Parser for command lines without overrides: a wrong one is answered in one sentence, as wrong overrides are."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any, NoReturn

from lab import __version__
from lab.console import tell

_VERSION = f"eureka-lab {__version__}"


def tell_version(arguments: Sequence[str]) -> None:
    """Prints the lab's version and ends the program, if a command line of overrides has ``--version``."""
    if "--version" in arguments:
        print(_VERSION)
        sys.exit()


class Parser(ArgumentParser):
    """Parser that says what is wrong with a command line, without printing the usage first; exit status 2."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.add_argument("--version", action="version", version=_VERSION)

    def error(self, message: str) -> NoReturn:
        """Ends the program."""
        tell(f"error: {message} ({self.prog} --help lists all options)")
        sys.exit(2)
