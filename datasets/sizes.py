"""Sizes that options may have: a larger number is taken for a typing error, and would fill memory."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

# Sizes within a model or a picture: pixels, widths, layers, heads, classes.
Size = Annotated[int, Field(gt=0, le=4096)]
# Samples that are held, or counted through, at once.
Samples = Annotated[int, Field(gt=0, le=10_000_000)]
MOST_SAMPLES = 1_000_000
BatchSize = Annotated[int, Field(gt=0, le=MOST_SAMPLES)]
Workers = Annotated[int, Field(ge=0, le=256)]
