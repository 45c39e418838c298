"""Packs pages and runs into parts that a lent machine can send back."""

from __future__ import annotations

import tarfile
from pathlib import Path

from lab.runs.summary import read_summary
from scripts.gpu.steps import ROOT, Places

PART_BYTES, MOST_PARTS = 15 * 2**20, 4


def pack(places: Places, out: Path, checkpoints: bool = True) -> list[Path]:
    """Packs pages and runs into parts in ``out``, in place of earlier parts, and returns the parts.

    Args:
        places: of pages and runs.
        out: folder of the parts.
        checkpoints: also pack the newest checkpoint of each unfinished run, runs to a moment first, as many as fit into
            ``MOST_PARTS`` parts; the other runs begin anew.
    """
    files = [
        path
        for folder in (places.results, places.runs)
        for path in (sorted(folder.rglob("*")) if folder.exists() else [])
        if path.is_file()
    ]
    out.mkdir(parents=True, exist_ok=True)
    whole, room = out / "gpu.tar.gz", MOST_PARTS * PART_BYTES
    with tarfile.open(whole, "w:gz") as archive:
        for path in files:
            if path.suffix != ".ckpt":
                archive.add(path, path.relative_to(ROOT))
        for path in [path for path in files if checkpoints and path.suffix == ".ckpt" and _goes_on(path)]:
            # Checkpoints are hardly compressed, so their size on disk tells whether they fit.
            if whole.stat().st_size + path.stat().st_size + PART_BYTES / 15 <= room:
                archive.add(path, path.relative_to(ROOT))
    for earlier in out.glob(f"{whole.name}.*"):
        earlier.unlink()
    parts: list[Path] = []
    with whole.open("rb") as file:
        while piece := file.read(PART_BYTES):
            parts.append(whole.with_name(f"{whole.name}.{len(parts)}"))
            parts[-1].write_bytes(piece)
    whole.unlink()
    return parts


def _goes_on(checkpoint: Path) -> bool:
    """Tells whether it is the newest checkpoint of a run that is not finished."""
    summary = read_summary(checkpoint.parent.parent)
    newest = max(checkpoint.parent.glob("last-*.ckpt"), default=None)
    return summary is not None and not summary.finished and checkpoint == newest
