#!/bin/sh
# Installs the lab in the image that is being built, from the copy of the repository in the current folder. A PyTorch that
# the image brings is kept; one that has none gets that of TORCH_INDEX (PyTorch's index of builds for CPUs, say), else of
# the default one, which on Linux comes with CUDA.
set -eu
pip="python -m pip install --no-cache-dir --root-user-action ignore"
if python -c 'import torch, torchvision' 2>/dev/null; then
    # Pins of what comes with the image are the image's.
    python -m pip list --format freeze | grep -iE '^(torch|torchvision|triton|nvidia-.*|cuda-.*|numpy)==' >/tmp/own.txt
    grep -viE '^(torch|torchvision|triton|nvidia-.*|cuda-.*|numpy|setuptools)==' constraints.txt >>/tmp/own.txt
else
    $pip ${TORCH_INDEX:+--no-deps --index-url "$TORCH_INDEX"} -c constraints.txt torch torchvision
    cp constraints.txt /tmp/own.txt
fi
$pip -c /tmp/own.txt '.[language,parallel,slurm,optuna]'
rm /tmp/own.txt
eureka-train --help >/dev/null
