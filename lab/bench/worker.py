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

# Libraries may print too; the answer is the line that begins with this.
ANSWER = "rows: "
# A compiled case spends most of its time in the compiler.
LIMIT_SECONDS = 900
# Seconds that a case is given to end, and to remove its temporary folders, once it is told to. Inside the compiler it
# hears nothing, and whoever ends the benchmark (scripts/gpu) waits for its table.
_TO_REMOVE = 8


def measure_apart(case: Case) -> list[Row]:
    """The rows of a case, measured in a fresh process, so that peak memory is that case's alone.

    A case that fails gives one row with its ``error``, so that the other cases still make a table.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(case.threads), "MKL_NUM_THREADS": str(case.threads)}
    command = [sys.executable, "-m", "lab.bench.worker", json.dumps(asdict(case))]
    # A case times several things, each for case.seconds.
    limit = LIMIT_SECONDS + 20 * case.seconds
    try:
        done = run(command, environment, limit)
    except subprocess.TimeoutExpired:
        return [_failed(case, f"not done within {limit:.0f} s")]
    for line in done.stdout.splitlines():
        if line.startswith(ANSWER):
            return [Row(**row) for row in json.loads(line.removeprefix(ANSWER))]
    if done.returncode < 0:
        return [_failed(case, f"ended by {signal.Signals(-done.returncode).name} (out of memory?)")]
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return [_failed(case, lines[-1][:300] if lines else f"exit status {done.returncode}, no message")]


def run(command: list[str], environment: dict[str, str], limit: float) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; over its limit, or interrupted, it gets time to remove what it has written.

    Raises:
        subprocess.TimeoutExpired: if it was not done within ``limit`` seconds.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            out, err = process.communicate(timeout=limit)
        except BaseException:
            process.terminate()
            try:
                process.communicate(timeout=_TO_REMOVE)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _failed(case: Case, error: str) -> Row:
    return Row(**case.setting(), quantity=case.quantity or case.group, unit="", error=error)


def main() -> None:
    """Measures the case given as the only argument and prints its rows."""
    # SIGTERM becomes an exception, so that temporary folders are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    keep_freed_memory()
    # Imported late: the parent process imports this module too, and needs neither timm nor Lightning.
    from lab.bench.measure import measure

    rows = measure(Case(**json.loads(sys.argv[1])))
    print(ANSWER + json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
