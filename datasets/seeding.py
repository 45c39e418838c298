"""Random numbers from what a batch *is* (seed, epoch, step, rank), never from what ran before it."""

from __future__ import annotations

import hashlib

import torch


def derived_seed(*parts: int | str) -> int:
    """A 63-bit seed from any named parts; unlike a sum, (1, 2) and (2, 1) differ."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator_of(*parts: int | str) -> torch.Generator:
    """A CPU generator for :func:`derived_seed`; CPU, so that every device sees the same scenes."""
    return torch.Generator().manual_seed(derived_seed(*parts))
