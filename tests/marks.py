"""Marks of tests that ask something of the machine."""

from __future__ import annotations

import shutil

import pytest

from lab.training.machine import cpp_compiler

needs_compiler = pytest.mark.skipif(
    shutil.which(cpp_compiler()) is None, reason=f"torch.compile needs {cpp_compiler()} on a CPU"
)
