"""Errors that a user can mend; `lab.train` prints them as one sentence, without a traceback."""


class LabError(Exception):
    """Bad input or a run that cannot go on; the message says what is wrong, where, and what would be right."""
