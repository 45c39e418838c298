"""One measurement in a process of its own: `python -m lab.bench.worker '<case as JSON>'`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict

from lab.bench.cases import Case, Row
from lab.training.memory import keep_freed_memory

# Others may print too; the answer is the line that begins like this.
ANSWER = "rows: "
# A compiled case spends most of its time in the compiler.
LIMIT_SECONDS = 900


def measure_apart(case: Case) -> list[Row]:
    """The rows of a case, measured in a fresh process, so that peak memory is that case's alone.

    A case that fails gives one row with its ``error``: the other numbers of the table stand without it.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(case.threads), "MKL_NUM_THREADS": str(case.threads)}
    command = [sys.executable, "-m", "lab.bench.worker", json.dumps(asdict(case))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return [_failed(case, f"not done within {LIMIT_SECONDS} s")]
    for line in done.stdout.splitlines():
        if line.startswith(ANSWER):
            return [Row(**row) for row in json.loads(line.removeprefix(ANSWER))]
    if done.returncode < 0:
        return [_failed(case, f"ended by {signal.Signals(-done.returncode).name} (out of memory?)")]
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return [_failed(case, lines[-1][:300] if lines else f"exit status {done.returncode}, no message")]


def _failed(case: Case, error: str) -> Row:
    return Row(**case.setting(), quantity=case.quantity or case.group, unit="", error=error)


def main() -> None:
    """Measures the case given as the only argument and prints its rows."""
    keep_freed_memory()
    # Late: the parent imports this module, and needs neither timm nor Lightning.
    from lab.bench.measure import measure

    rows = measure(Case(**json.loads(sys.argv[1])))
    print(ANSWER + json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
