#!/usr/bin/env bash
# Runs the main dataset of Table 1 of Eureka-moments in Transformers (all of Table 4) with as many seeds as asked for,
# on one NVIDIA GPU unless an override says otherwise.
#
#   scripts/reproduce/table1_main.sh [seeds, default 10] [further overrides ...]
#
# Stop it at any time: the same command goes on with what is missing. What it does: scripts/reproduce/table.py.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
seeds=10
if [[ "${1:-}" =~ ^[0-9]+$ ]]; then seeds=$1; shift; fi
exec "${PYTHON:-python}" -m scripts.reproduce.table 4 --seeds "$seeds" trainer=gpu compile=true "$@"
