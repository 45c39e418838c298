"""Random numbers from what a batch *is* (seed, epoch, step, rank), never from what ran before it."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def derived_seed(*parts: int | str) -> int:
    """A 63-bit seed from any named parts; unlike a sum, (1, 2) and (2, 1) differ.

    torch's CPU generator keeps 32 bits of it: of n batches, about n^2 / 2^33 pairs are drawn alike (30 of 500,000).
    """
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator_of(*parts: int | str) -> torch.Generator:
    """A CPU generator for :func:`derived_seed`; CPU, so that every device sees the same scenes."""
    return torch.Generator().manual_seed(derived_seed(*parts))


class Shuffle:
    """Random orders of the numbers below a size; the last order is kept, since training asks for it at every step."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[int | str, ...], Tensor] | None = None

    def order(self, size: int, *parts: int | str) -> Tensor:
        """The order [size] int64 that follows from these parts, as a generator of :func:`generator_of` does."""
        if self._kept is None or self._kept[0] != (size, *parts):
            self._kept = ((size, *parts), torch.randperm(size, generator=generator_of(*parts)))
        return self._kept[1]

    def walk(self, start: int, count: int, size: int, *parts: int | str) -> Tensor:
        """Numbers [count] int64 of :meth:`order` from the place ``start`` on; after its end it begins anew."""
        return self.order(size, *parts)[torch.arange(start, start + count) % size]

    def endless(self, places: Tensor, size: int, *parts: int | str) -> Tensor:
        """Numbers [B] int64 at these places of a walk without an end, which has an order of its own for each turn."""
        found = torch.empty_like(places)
        for turn in (places // size).unique().tolist():
            mine = places // size == turn
            found[mine] = self.order(size, *parts, turn)[places[mine] % size]
        return found
