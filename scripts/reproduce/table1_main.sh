#!/usr/bin/env bash
# Table 1 of Eureka-moments in Transformers, main dataset: every row, as many seeds as asked for, on one NVIDIA GPU.
#
#   scripts/reproduce/table1_main.sh [seeds, default 10] [further overrides ...]
#
# Stop it at any time: the same command goes on with what is missing. What it does: scripts/reproduce/table_1.py.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python}" -m scripts.reproduce.table_1 "$@"
