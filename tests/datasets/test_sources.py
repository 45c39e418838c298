import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from lab.datasets.sources import Images, TorchvisionSource


def idx(values: torch.Tensor) -> bytes:
    """The IDX format of MNIST."""
    head = struct.pack(">HBB", 0, 8, values.ndim) + b"".join(struct.pack(">I", n) for n in values.shape)
    return head + values.to(torch.uint8).numpy().tobytes()


@pytest.fixture
def small_mnist(tmp_path: Path) -> tuple[Path, torch.Tensor]:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    pixels = torch.randint(256, (12, 28, 28), dtype=torch.uint8)
    for split in ("train", "t10k"):
        (raw / f"{split}-images-idx3-ubyte").write_bytes(idx(pixels))
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(idx(torch.arange(12) % 10))
    return tmp_path, pixels


def test_mnist_from_a_folder(small_mnist) -> None:
    folder, pixels = small_mnist
    images = TorchvisionSource("MNIST", str(folder)).load("train")
    assert torch.equal(images.pixels[:, 0], pixels)
    assert images.labels.tolist() == [*range(10), 0, 1]
    assert len(images.class_names) == 10


def test_what_is_there_is_not_downloaded(small_mnist, monkeypatch) -> None:
    folder, _ = small_mnist
    monkeypatch.setattr(torchvision.datasets.MNIST, "download", lambda self: pytest.fail("downloads"))
    before = sorted(folder.rglob("*"))
    TorchvisionSource("MNIST", str(folder), download=True).load("test")
    assert sorted(folder.rglob("*")) == before


def test_what_is_missing_is_downloaded(tmp_path: Path, small_mnist, monkeypatch) -> None:
    _, pixels = small_mnist

    def served(url: str, download_root: str, filename: str, md5: str | None = None) -> None:
        """What torchvision's download leaves behind, without the network."""
        name = Path(filename).stem
        content = idx(pixels) if "images" in name else idx(torch.arange(12) % 10)
        (Path(download_root) / filename).write_bytes(gzip.compress(content))
        (Path(download_root) / name).write_bytes(content)

    monkeypatch.setattr(torchvision.datasets.mnist, "download_and_extract_archive", served)
    folder = tmp_path / "empty"
    images = TorchvisionSource("MNIST", str(folder), download=True).load("train")
    assert torch.equal(images.pixels[:, 0], pixels)


def test_a_download_leaves_what_is_there(tmp_path: Path, small_mnist, monkeypatch) -> None:
    folder, pixels = small_mnist
    mine = folder / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    mine.write_bytes(idx(torch.arange(12) % 2))
    (folder / "MNIST" / "raw" / "t10k-images-idx3-ubyte").unlink()

    def served(url: str, download_root: str, filename: str, md5: str | None = None) -> None:
        content = idx(pixels) if "images" in filename else idx(torch.arange(12) % 10)
        (Path(download_root) / Path(filename).stem).write_bytes(content)

    monkeypatch.setattr(torchvision.datasets.mnist, "download_and_extract_archive", served)
    with pytest.raises(FileNotFoundError, match="no whole MNIST in"):
        TorchvisionSource("MNIST", str(folder)).load("train")
    assert TorchvisionSource("MNIST", str(folder), download=True).load("train").labels.tolist() == [0, 1] * 6
    assert mine.read_bytes() == idx(torch.arange(12) % 2)


def test_a_broken_file_is_not_written_over(tmp_path: Path, monkeypatch) -> None:
    """CIFAR's are compared with their sums."""
    broken = tmp_path / "cifar-10-batches-py" / "batches.meta"
    broken.parent.mkdir()
    broken.write_bytes(b"mine")
    new = pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [0], "label_names": ["airplane"]})

    def served(url: str, download_root: str, filename: str, md5: str | None = None) -> None:
        parts = ("batches.meta", "test_batch", *(f"data_batch_{number}" for number in range(1, 6)))
        for name in parts:
            path = Path(download_root) / "cifar-10-batches-py" / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(new)

    def whole(path: str, md5: str) -> bool:
        return Path(path).exists() and Path(path).read_bytes() == new

    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", served)
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", whole)
    left = tmp_path / ".CIFAR10-abcd"  # by a process that was killed
    left.mkdir()
    for _ in range(2):  # whole files that lie there since the first time are not named
        with pytest.raises(
            FileNotFoundError, match=r"\([^,]*batches\.meta lay there before and may be damaged: move it"
        ):
            TorchvisionSource("CIFAR10", str(tmp_path), download=True).load("train")
        assert broken.read_bytes() == b"mine" and (broken.parent / "data_batch_1").read_bytes() == new
    assert not left.exists()


def test_missing_data_is_told_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        TorchvisionSource("FashionMNIST", str(tmp_path)).load("train")
    message = str(error.value)
    for word in ("FashionMNIST", str(tmp_path), "download=true", "data/source=drawn"):
        assert word in message
    assert "\n" not in message


def test_packed_files_are_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    (tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte.gz").touch()
    with pytest.raises(FileNotFoundError, match=r"MNIST are packed: unpack them with gunzip .*MNIST/raw/\*\.gz"):
        TorchvisionSource("MNIST", str(tmp_path)).load("train")


def test_a_failed_download_is_told_in_one_sentence(tmp_path: Path, monkeypatch) -> None:
    def fails(*_, **__) -> None:
        raise RuntimeError("no route")

    monkeypatch.setattr(torchvision.datasets.mnist, "download_and_extract_archive", fails)
    with pytest.raises(FileNotFoundError, match=r"MNIST could not be downloaded .*no route"):
        TorchvisionSource("MNIST", str(tmp_path), download=True).load("train")


def test_a_folder_that_cannot_be_made_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(FileNotFoundError, match=r"MNIST could not be downloaded .*data/source=drawn"):
        TorchvisionSource("MNIST", str(tmp_path / "file" / "data"), download=True).load("train")


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize("download", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        (IMAGES, idx(torch.ones(12, 28, 28))[:500], "is invalid for input of size"),
        (IMAGES, b"<html>not here</html>", "it is of another format"),
        (IMAGES, b"", "invalid literal"),
        (IMAGES, idx(torch.ones(12, 28, 28))[:4] + struct.pack(">I", 10**9) + bytes(20), "is invalid for input"),
        (IMAGES, idx(torch.ones(12)), "3 dimension"),
        (IMAGES, idx(torch.zeros(12, 28, 28)), "every pixel of its images is 0"),
        (LABELS, idx(torch.full((12,), 10)), r"labels must lie in 0 \.\.\. 9"),
        (LABELS, idx(torch.ones(11)), r"labels must be int64 of shape \[12\]"),
        (LABELS, idx(torch.ones(12, 28, 28)), "1 dimension"),
        (LABELS, b"\0\0\x0d\1" + struct.pack(">I", 12) + bytes(12), "is invalid for input of size"),
    ],
)
def test_a_damaged_file_is_named(small_mnist, download: bool, name: str, content: bytes, why: str) -> None:
    folder, _ = small_mnist
    (folder / "MNIST" / "raw" / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"MNIST/raw/{name} is damaged \(.*{why}.*data/source=drawn$"):
        TorchvisionSource("MNIST", str(folder), download=download).load("train")


def test_a_download_that_breaks_off_leaves_nothing_that_looks_whole(tmp_path: Path, monkeypatch) -> None:
    def half(url: str, download_root: str, filename: str, md5: str | None = None) -> None:
        (Path(download_root) / Path(filename).stem).write_bytes(b"half")
        if "t10k-labels" in filename:
            raise ConnectionResetError("reset by peer")

    monkeypatch.setattr(torchvision.datasets.mnist, "download_and_extract_archive", half)
    with pytest.raises(FileNotFoundError, match="reset by peer"):
        TorchvisionSource("MNIST", str(tmp_path), download=True).load("train")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_an_unknown_split_is_refused(small_mnist) -> None:
    with pytest.raises(ValueError, match="'tset'"):
        TorchvisionSource("MNIST", str(small_mnist[0])).load("tset")  # type: ignore[arg-type]


def test_an_unknown_set_is_refused() -> None:
    with pytest.raises(ValueError, match="'MNISTT'"):
        TorchvisionSource("MNISTT", "data")
    for name in ("EMNIST", "SVHN", "FakeData"):
        with pytest.raises(ValueError, match=f"{name} does not load a train and a test split"):
            TorchvisionSource(name, "data")
    for name in ("MNIST", "KMNIST", "CIFAR10", "CIFAR100"):
        TorchvisionSource(name, "data")


@pytest.mark.parametrize(
    ("pixels", "labels"),
    [
        (torch.zeros(2, 28, 28, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 1, 4, 4), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 5])),
    ],
)
def test_images_check_themselves(pixels, labels) -> None:
    with pytest.raises(ValueError):
        Images(pixels, labels, ("a", "b"))


@pytest.mark.real_data
def test_real_images(real_data) -> None:
    digits = TorchvisionSource("MNIST", str(real_data)).load("test")
    garments = TorchvisionSource("FashionMNIST", str(real_data)).load("test")
    assert digits.pixels.shape == garments.pixels.shape == (10_000, 1, 28, 28)
    assert digits.pixels.float().mean() / 255 == pytest.approx(0.1325, abs=1e-3)
    assert garments.pixels.float().mean() / 255 == pytest.approx(0.2868, abs=1e-3)
    assert garments.class_names[9] == "Ankle boot"
