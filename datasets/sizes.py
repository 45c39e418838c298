"""Sizes that options may have: what is larger is a slip of the keyboard, and would fill memory."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

# Of what a model or a picture is made: pixels, widths, layers, heads, classes.
Size = Annotated[int, Field(gt=0, le=4096)]
# Samples that are held, or counted through, at once.
Samples = Annotated[int, Field(gt=0, le=10_000_000)]
MOST_SAMPLES = 1_000_000
BatchSize = Annotated[int, Field(gt=0, le=MOST_SAMPLES)]
Workers = Annotated[int, Field(ge=0, le=256)]
