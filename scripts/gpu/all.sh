#!/usr/bin/env bash
# Runs everything that waits for an NVIDIA GPU within a number of minutes; leaves its pages in results/gpu.
#
#   scripts/gpu/all.sh MINUTES [--dry-run] [--rehearse] [--only STAGE ...]
#
# Stop it at any time: the same command goes on with what is missing. What it does: scripts/gpu. Where
# Python packages are missing, it takes those that `python -m scripts.gpu.carry` has put into .carry/wheels.
set -euo pipefail
export EUREKA_GPU_BEGAN=${EUREKA_GPU_BEGAN:-$(date +%s)} # the minutes count from here
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
[[ -z ${OUT:-} ]] || { mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) && export OUT; } # as the caller's folder
cd "$here"
python=${PYTHON:-$(command -v python || command -v python3)}
# After make setup, in a shell that has not activated its environment.
[[ -n ${PYTHON:-}${VIRTUAL_ENV:-} || ! -x .venv/bin/python ]] || python=.venv/bin/python
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
needed='import lab.training.fit, lab.bench.__main__, tabulate, pytest, pytest_timeout, hypothesis, entmax'
if ! why=$("$python" -c "$needed" 2>&1); then
    site=$(mktemp -d)
    if ! compgen -G '.carry/wheels/*.whl' >/dev/null ||
        ! "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" .carry/wheels/*.whl; then
        echo "error: the lab cannot be imported here (${why##*$'\n'}): make setup, or python -m scripts.gpu.carry where" \
            "there is a network, for the Python of this machine" >&2
        exit 1
    fi
    export PYTHONPATH="$here:$site${PYTHONPATH#"$here"}"
    if ! why=$("$python" -c "$needed" 2>&1); then
        echo "error: with the wheels of .carry the lab still cannot be imported here: ${why##*$'\n'}" >&2
        exit 1
    fi
fi
exec "$python" -m scripts.gpu "$@"
