#!/usr/bin/env bash
# Table 1 of Eureka-moments in Transformers, main dataset: every row, as many seeds as asked for, on one NVIDIA GPU.
#
#   scripts/reproduce/table1_main.sh [seeds, default 10] [further overrides ...]
#
# A run of 300 epochs takes about 18 million scenes. Stop it at any time: the same command runs only what is missing.
# The learning rates are those of the paper's headline runs (5e-4 ViT, 1e-4 heat treatment, 1e-5 NormSoftmax), where
# it names them; rows without one take the ViT's.
set -euo pipefail

seeds=${1:-10}
shift || true
python=${PYTHON:-python}
rows=(
    "softmax=softmax"
    "softmax=softmax softmax.tau=40"
    "softmax=softmax softmax.tau=13.333333"
    "softmax=softmax softmax.tau=0.33333333"
    "softmax=softmax optim=deit_weight_decay_0.5"
    "softmax=softmax optim=deit_warmup_20"
    "softmax=softmax intervention=grad_scaling"
    "softmax=heat_treatment optim/lr=max_1e-4_min_1e-6"
    "softmax=norm_softmax optim/lr=max_1e-5_min_1e-6"
    "softmax=norm_softmax softmax.tau=0.33333333 optim/lr=max_1e-5_min_1e-6"
    "softmax=norm_softmax_heat_treatment optim/lr=max_1e-5_min_1e-6"
    "model=resnet9"
)

echo "${#rows[@]} rows x ${seeds} seeds of 300 epochs; an epoch's time stands in the first run's progress line."
for seed in $(seq 0 $((seeds - 1))); do
    for row in "${rows[@]}"; do
        # Word splitting is meant: a row is several overrides. A failed run must not end the others.
        # shellcheck disable=SC2086
        "$python" -m lab.train experiment=main_task trainer=gpu compile=true $row seed="$seed" "$@" ||
            echo "failed: $row seed=$seed" >&2
    done
done
