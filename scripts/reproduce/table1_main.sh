#!/usr/bin/env bash
# Table 1 of Eureka-moments in Transformers, main dataset: every row, as many seeds as asked for, on one NVIDIA GPU.
#
#   scripts/reproduce/table1_main.sh [seeds, default 10] [further overrides ...]
#
# A run of 300 epochs takes about 18 million scenes. Stop it at any time: the same command runs only what is missing.
# What a row is stands in configs/row/<name>.yaml: the learning rates are those of the paper's headline runs (5e-4 ViT,
# 1e-4 heat treatment, 1e-5 NormSoftmax), where it names them; rows without one take the ViT's.
set -euo pipefail

seeds=${1:-10}
shift || true
python=${PYTHON:-python}
rows=(
    "+row=vit"
    "+row=vit_tau_1_over_0.025"
    "+row=vit_tau_1_over_0.075"
    "+row=vit_tau_1_over_3"
    "+row=vit_weight_decay_0.5"
    "+row=vit_warmup_20"
    "+row=vit_grad_scaling"
    "+row=vit_heat_treatment"
    "+row=norm_softmax"
    "+row=norm_softmax_tau_1_over_3"
    "+row=norm_softmax_heat_treatment"
    "+row=resnet9"
)

echo "${#rows[@]} rows x ${seeds} seeds of 300 epochs; an epoch's time stands in the first run's progress line."
# Seed by seed, so that every row is there early; -m +sweep=table_1 goes row by row.
for seed in $(seq 0 $((seeds - 1))); do
    for row in "${rows[@]}"; do
        # A failed run must not end the others.
        "$python" -m lab.train experiment=main_task trainer=gpu compile=true "$row" seed="$seed" "$@" ||
            echo "failed: $row seed=$seed" >&2
    done
done
