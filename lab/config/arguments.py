"""Parser for command lines without overrides: a wrong one is answered in one sentence, as wrong overrides are."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
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
    """Parser that says what is wrong with a command line, without printing the usage first; exit status 2.

    A description keeps its line breaks, and a module that was started by ``python -m`` is called so.
    """

    def __init__(self, prog: str | None = None, **options: Any) -> None:
        spec = sys.modules["__main__"].__spec__
        prog = prog or (f"python -m {spec.name.removesuffix('.__main__')}" if spec else None)
        super().__init__(prog, **{"formatter_class": RawDescriptionHelpFormatter, **options})
        self.add_argument("--version", action="version", version=_VERSION)

    def error(self, message: str) -> NoReturn:
        """Ends the program."""
        tell(f"error: {message} ({self.prog} --help lists all options)")
        sys.exit(2)
