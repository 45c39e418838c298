"""Bad command lines, each with what its one sentence must name."""

from __future__ import annotations

from typing import NamedTuple


class BadLine(NamedTuple):
    """A command line that must be refused in one sentence.

    Attributes:
        module: of the command, as after ``python -m``.
        arguments: of the command line.
        named: what the sentence must hold.
    """

    module: str
    arguments: tuple[str, ...]
    named: str


def _lines(module: str, *rows: tuple[str, str]) -> list[BadLine]:
    """Rows of a command: its arguments, parted by blanks, and what the sentence must hold."""
    return [BadLine(module, tuple(arguments.split()), named) for arguments, named in rows]


BAD_LINES: list[BadLine] = [
    *_lines(
        "lab.train",
        ("trainer.devices=99", "trainer.devices"),
        ("data.batch_size=1000000000", "data.batch_size"),
        ("threads=100000", "threads"),
        ("trainer.accumulate_grad_batches=0", "trainer.accumulate_grad_batches"),
        ("trainer.check_val_every_n_epoch=0", "trainer.check_val_every_n_epoch"),
        ("trainer.limit_train_batches=0", "trainer.limit_train_batches"),
        ("trainer.limit_val_batches=0", "trainer.limit_val_batches"),
        ("trainer.log_every_n_steps=-1", "trainer.log_every_n_steps"),
        ("paths.runs=null", "paths.runs"),
        ("~optim", "optim"),
        ("seed=${foo}", "seed"),
        ("seed=-1", "seed"),
        ("seeds=true", "seeds"),
        ("optim.lr=inf", "optim.lr"),
        ("trainer.precision=foo", "bf16-mixed"),
        ("optim.schedule=foo", "optim.schedule"),
        ("foo", "foo"),
        ("a=[1,", "a=[1,"),
        ("-m softmax=softmax,foo", "softmax=foo"),
        ("-m softmax=softmax seed=", "seed"),
    ),
    *_lines("lab.inspect", ("run=nowhere diagnostics=[]", "diagnostics")),
    *_lines("lab.report", ("nowhere", "nowhere")),
    *_lines("lab.status", ("nowhere", "nowhere")),
    *_lines("lab.bench", ("--threads 0", "--threads")),
]
