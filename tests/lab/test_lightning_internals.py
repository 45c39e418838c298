"""What the lab takes from Lightning and PyTorch that they do not promise: each test is named after what has changed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import lightning as L
import pytest
import torch
from conftest import ROOT
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.loops.progress import _BatchProgress
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import Tensor, nn

from lab.console import tell
from lab.runs.outcome import Ending
from lab.training import lightning_internals
from lab.training.seeds.callbacks import EachSeed
