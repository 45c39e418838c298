"""Fills .carry with what a lent machine without a network lacks: Python packages as wheels, and images.

    python -m scripts.gpu.carry                     # for CPython 3.12 on x86-64 Linux
    python -m scripts.gpu.carry --python 3.13

Packages come through pip as it is configured here, in the versions of constraints.txt; images from the folder in
EUREKA_DATA, packed. What is there already is not fetched again, and wheels of another Python or version
are removed. .carry is ignored by git.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from operator import methodcaller
from pathlib import Path

from lab.config.arguments import Parser
from lab.console import LabError, refusals
from lab.files import write_atomically

ROOT = Path(__file__).resolve().parents[2]
CARRIED = ROOT / ".carry"
# Direct and indirect dependencies of pyproject.toml that a machine with PyTorch, Lightning and timm may lack.
PACKAGES = (
    "hydra-core",
    "omegaconf",
    "antlr4-python3-runtime",
    "pydantic",
    "pydantic_core",
    "annotated-types",
    "typing-inspection",
    "typing_extensions",
    "filelock",
    "lazy-loader",
    "tabulate",
    "psutil",
    # For the tests.
    "entmax",
    "hypothesis",
    "sortedcontainers",
    "pytest",
    "pytest-timeout",
    "pluggy",
    "iniconfig",
    "pygments",
)
SETS = ("MNIST", "FashionMNIST")
# At most 64 MiB may travel to the machine, of which the checkout itself takes 10.
MOST_MIB = 50


def pins(text: str) -> dict[str, str]:
    """The versions of a constraints file, by normalised name."""
    found = re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", text, re.MULTILINE)
    return {_normalised(name): version for name, version in found}


def fetch_wheels(folder: Path, python: str) -> list[Path]:
    """Brings a wheel of every package into ``folder``, for this Python on x86-64 Linux, and returns the wheels.

    Raises:
        LabError: if pip finds none, or the one that it builds here would not work there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pinned = pins((ROOT / "constraints.txt").read_text())
    found = [_wheel(name, pinned[_normalised(name)], folder, python) for name in PACKAGES]
    # scripts/gpu/all.sh installs all that is there, and pip refuses a wheel of another Python.
    for other in {*folder.glob("*.whl")} - {*found}:
        other.unlink()
    return found


def pack_images(data: Path, folder: Path) -> list[Path]:
    """Packs the images of MNIST and Fashion-MNIST below ``data`` into ``folder`` and returns the files.

    Raises:
        LabError: if they are not there.
    """
    packed = []
    for name in SETS:
        sources = sorted((data / name / "raw").glob("*-ubyte"))
        if len(sources) != 4:
            raise LabError(f"{data / name / 'raw'} holds {len(sources)} files of {name}, not 4: set EUREKA_DATA")
        for source in sources:
            target = folder / name / "raw" / f"{source.name}.gz"
            if not target.exists():
                content = gzip.compress(source.read_bytes(), mtime=0)
                write_atomically(target, methodcaller("write", content))
            packed.append(target)
    return packed


def unpack_images(folder: Path, data: Path) -> None:
    """Unpacks images that :func:`pack_images` has put into ``folder`` to ``data``, where torchvision reads them."""
    for packed in sorted(folder.glob("*/raw/*.gz")):
        target = data / packed.relative_to(folder).with_suffix("")
        if not target.exists():
            write_atomically(target, methodcaller("write", gzip.decompress(packed.read_bytes())))


def main(arguments: Sequence[str] | None = None) -> None:
    """Fills the folder and tells how much it takes.

    Raises:
        LabError: if a package or the images are not to be had, or all together is more than ``MOST_MIB``.
    """
    parser = Parser(description=__doc__)
    parser.add_argument("--python", default="3.12", help="version of Python there")
    options = parser.parse_args(arguments)
    data = os.environ.get("EUREKA_DATA")
    if not data:
        raise LabError("EUREKA_DATA is not set: it names the folder that holds MNIST and FashionMNIST")
    files = fetch_wheels(CARRIED / "wheels", options.python) + pack_images(Path(data), CARRIED / "data")
    size = sum(file.stat().st_size for file in files) / 2**20
    if size > MOST_MIB:
        raise LabError(f"{CARRIED} takes {size:.0f} MiB, more than the {MOST_MIB} that may travel")
    print(f"{CARRIED}: {len(files)} files, {size:.1f} MiB")


def _wheel(name: str, version: str, folder: Path, python: str) -> Path:
    def there() -> list[Path]:
        own = re.sub(r"[-_.]+", "_", name)
        wheels = [path for path in folder.glob("*.whl") if _normalised(path.name.split("-")[0]) == _normalised(own)]
        tag = f"cp{python.replace('.', '')}-"
        return [
            path
            for path in wheels
            if f"-{version}-" in path.name and (_is_pure(path) or tag in path.name or "abi3" in path.name)
        ]

    if not there():
        platforms = [f"--platform=manylinux_2_{n}_x86_64" for n in (28, 27, 17, 12, 5)] + [
            "--platform=manylinux2014_x86_64"
        ]
        target = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms]
        if _pip("download", "--no-deps", *target, "--dest", str(folder), f"{name}=={version}"):
            # There is no wheel of this package: pip builds one, which works there if it is plain Python.
            with tempfile.TemporaryDirectory() as built:
                said = _pip("wheel", "--no-deps", "--wheel-dir", built, f"{name}=={version}")
                wheels = list(Path(built).glob("*.whl"))
                if said or not all(map(_is_pure, wheels)):
                    raise LabError(f"no wheel of {name}=={version} for Python {python} on x86-64 Linux: {said}")
                for wheel in wheels:
                    shutil.copy(wheel, folder)
    return there()[0]


def _pip(*words: str) -> str:
    """Runs pip and returns the last line of its error; "" if it succeeds."""
    done = subprocess.run([sys.executable, "-m", "pip", *words, "--quiet"], capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return "" if not done.returncode else (lines[-1] if lines else f"pip ended with {done.returncode}")


def _is_pure(wheel: Path) -> bool:
    return wheel.name.endswith("-none-any.whl")


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    with refusals():
        main()
