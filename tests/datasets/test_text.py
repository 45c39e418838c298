"""Text data: packed blocks of a corpus, masked anew each time, from a cache that goes by content."""

from __future__ import annotations

import math
import os
import re
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lab.datasets.loading import IGNORED
from lab.datasets.text import tokens
from lab.datasets.text.corpus import FolderCorpus, HubCorpus
from lab.datasets.text.data import CausalLanguageData, MaskedLanguageData, masked
from lab.datasets.text.tokens import END, SPECIAL

pytest.importorskip("tokenizers", reason="the extra language is not installed")

LINES = [
    f"{name} has {count} {thing} ." for name in ("Ada", "Bo", "Cy") for count in range(40) for thing in ("cats", "hats")
]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderCorpus:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "train.txt").write_text("\n\n".join(LINES))
    (folder / "valid.txt").write_text("\n".join(LINES[::3]))
    return FolderCorpus(str(folder))


def sizes(**others: int) -> dict:
    return {"vocabulary": 300, "block": 16, "batch_size": 4, "epoch_size": 32, "validation_size": 10, **others}


def test_the_next_token_is_asked_for_at_each(corpus: FolderCorpus) -> None:
    data = CausalLanguageData(corpus, **sizes())
    data.setup()
    batch = data.draw_train(0, 3)
    assert batch["x"].shape == batch["y"].shape == (4, 16) and torch.equal(batch["x"][:, 1:], batch["y"][:, :-1])
    assert data.model_arguments() == {"num_classes": data.tokens.vocabulary, "causal_context": 16}
    assert torch.equal(batch["x"], data.draw_train(0, 3)["x"])
    assert int((data.tokens.streams["train"] == END).sum()) == len(LINES)


def test_each_block_comes_once_a_time_through(corpus: FolderCorpus) -> None:
    data = CausalLanguageData(corpus, **sizes(batch_size=5, epoch_size=5))
    count = data.blocks("train")
    steps = 2 * count // 5 + 1
    seen = torch.cat([data.draw_train(epoch, 0)["x"] for epoch in range(steps)])[: 2 * count]
    places = [tuple(row) for row in data.block_at("train", torch.arange(count))[:, :-1].tolist()]
    for turn in seen.split(count):
        assert sorted(map(tuple, turn.tolist())) == sorted(places)
    assert not torch.equal(*seen.split(count))


def test_the_unigram_entropy_is_the_loss_of_one_who_counts(corpus: FolderCorpus) -> None:
    data = CausalLanguageData(corpus, **sizes(validation_size=1000))
    data.setup()
    counts = [1] * data.tokens.vocabulary
    for token in data.tokens.streams["train"].tolist():
        counts[token] += 1
    asked = torch.cat([data.draw_validation(i)["y"] for i in data.validation_batches(4)]).flatten().tolist()
    surprise = [-math.log(counts[token] / sum(counts)) for token in asked]
    assert data.prior_loss() == pytest.approx(sum(surprise) / len(surprise))


def test_fifteen_percent_are_masked_and_never_twice_the_same(corpus: FolderCorpus) -> None:
    data = MaskedLanguageData(corpus, **sizes(block=40))
    data.setup()
    first, again, later = (
        data.on_after_batch_transfer(data.draw_train(*place), 0) for place in ((0, 0), (0, 0), (1, 0))
    )
    assert first["x"][1].shape == first["y"].shape == (4, 6)
    assert torch.equal(first["x"][1], again["x"][1]) and not torch.equal(first["x"][1], later["x"][1])
    assert bool((first["y"] >= len(SPECIAL)).all())  # ends of documents are not asked for
    # Ends of documents, which are never asked for, do not count.
    train = [token for token in data.tokens.streams["train"].tolist() if token >= len(SPECIAL)]
    counts = Counter(train + list(range(len(SPECIAL), data.tokens.vocabulary)))
    drawn = map(data.draw_validation, data.validation_batches(4))
    asked = torch.cat([data.on_after_batch_transfer(batch, 0)["y"] for batch in drawn]).flatten().tolist()
    surprise = [-math.log(counts[token] / counts.total()) for token in asked]
    assert data.prior_loss() == pytest.approx(sum(surprise) / len(surprise))


def test_of_the_masked_eight_in_ten_are_hidden_and_one_is_another() -> None:
    before = torch.randint(10, 1000, (500, 100), generator=torch.Generator().manual_seed(0))
    draw = torch.Generator().manual_seed(1)
    fate = torch.rand(500, 15, generator=draw)
    batch = masked(before, torch.rand(500, 100, generator=draw), fate, torch.full((500, 15), 5), mask=4)
    (shown, places), asked = batch["x"], batch["y"]
    at = shown.gather(1, places)
    assert torch.equal(before.gather(1, places), asked)
    assert (at == 4).double().mean() == pytest.approx(0.8, abs=0.02)
    assert (at == 5).double().mean() == pytest.approx(0.1, abs=0.02)
    assert (at == asked).double().mean() == pytest.approx(0.1, abs=0.02)
    assert int((shown != before).sum(1).max()) <= 15


def test_draws_are_those_of_the_numbers_after_the_special_tokens(corpus: FolderCorpus) -> None:
    data = MaskedLanguageData(corpus, **sizes())
    vocabulary, first = data.tokens.vocabulary, len(SPECIAL)
    assert data.tokens.ordinary.tolist() == list(range(first, vocabulary))
    for low, high, shape in ((first, vocabulary, (9, 5)), (0, vocabulary - first, (9, 5))):
        drawn = torch.randint(low, high, shape, generator=torch.Generator().manual_seed(3)) + first - low
        expected = torch.randint(first, vocabulary, shape, generator=torch.Generator().manual_seed(3))
        assert torch.equal(drawn, expected)


def test_what_a_short_block_lacks_is_not_asked_for(corpus: FolderCorpus) -> None:
    for name in ("train.txt", "valid.txt"):
        (corpus.folder / name).write_text("a\nb\nc d\ne\n" * 100 + "abcdefghijklmnopqrstuvw\n" * 50)
    data = MaskedLanguageData(corpus, **sizes(vocabulary=261, validation_size=1000), share=0.9)
    data.setup()
    assert data.ignores and data.masked == 14
    asked: list[int] = []
    for index in data.validation_batches(4):
        drawn = data.draw_validation(index)
        batch = data.on_after_batch_transfer(drawn, 0)
        (shown, places), y, before = batch["x"], batch["y"], drawn["tokens"]
        there, ordinary = before.gather(1, places), (before >= len(SPECIAL)).sum(1)
        assert torch.equal(y == IGNORED, there < len(SPECIAL)) and bool((y[y != IGNORED] >= len(SPECIAL)).all())
        assert torch.equal((y != IGNORED).sum(1), ordinary.clamp(max=14))
        assert torch.equal(shown.gather(1, places)[y == IGNORED], there[y == IGNORED])
        asked += y[y != IGNORED].tolist()
    train = [token for token in data.tokens.streams["train"].tolist() if token >= len(SPECIAL)]
    counts = Counter(train + list(range(len(SPECIAL), data.tokens.vocabulary)))
    surprise = [-math.log(counts[token] / counts.total()) for token in asked]
    assert data.prior_loss() == pytest.approx(sum(surprise) / len(surprise))
    assert MaskedLanguageData(corpus, **sizes(), share=0.99).masked == 15
    assert not MaskedLanguageData(corpus, **sizes(), share=0.05).ignores


@pytest.mark.parametrize("kind", [CausalLanguageData, MaskedLanguageData])
def test_the_plateau_is_never_above_guessing(
    corpus: FolderCorpus, kind: type, capsys: pytest.CaptureFixture[str]
) -> None:
    data = kind(corpus, **sizes())
    data.setup()
    assert (data.prior_loss() or 9) < math.log(290) and "guessing" not in capsys.readouterr().err
    (corpus.folder / "valid.txt").write_text("@#$%^&*~?!{}" * 100)
    data = kind(corpus, **sizes())
    data.setup()
    answers = data.tokens.vocabulary - (len(SPECIAL) if kind is MaskedLanguageData else 0)
    assert data.prior_loss() == math.log(answers)
    assert f"the plateau of the loss is that of guessing among {answers} tokens, 5." in capsys.readouterr().err


def test_special_tokens_in_a_text_are_counted_and_told(
    corpus: FolderCorpus, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens.tokenised(corpus, 300)
    assert "as special tokens" not in capsys.readouterr().err
    (corpus.folder / "train.txt").write_text("\n".join([*LINES, "</s> <mask> <unk>", "<mask>"]))
    tokens.tokenised(corpus, 300)
    assert "holds </s> (1), <mask> (2): they are read as special tokens, so replace" in capsys.readouterr().err


def test_a_document_is_a_line_a_paragraph_or_a_file(corpus: FolderCorpus) -> None:
    text = "\ndef f():\r\n    return 1\n \n\n  two \n"
    (corpus.folder / "train.txt").write_bytes(text.encode())
    (corpus.folder / "blank.txt").write_text(" \n\n")
    expected = {
        None: ["def f():", "return 1", "two"],
        "line": ["def f():", "return 1", "two"],
        "paragraph": ["def f():\n    return 1", "  two "],
        "file": [text.replace("\r", "")],
    }
    named = {}
    for document, documents in expected.items():
        own = FolderCorpus(str(corpus.folder), document=document)  # type: ignore[arg-type]
        assert list(own.documents("train")) == documents
        named[document] = own.identity()
    assert named[None] == named["line"] and len(set(named.values())) == 3


def test_the_cache_goes_by_content(corpus: FolderCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = tokens._make
    monkeypatch.setattr(tokens, "_make", lambda *given: (made.append(given), make(*given)))
    tokens.tokenised(corpus, 300)
    tokens.tokenised(FolderCorpus(str(corpus.folder)), 300)
    assert len(made) == 1
    tokens.tokenised(corpus, 301)
    (corpus.folder / "train.txt").write_text("\n".join(LINES[::2]))
    tokens.tokenised(corpus, 300)
    assert len(made) == 3 and not list((tokens.cache() / "text").glob(".*.unfinished"))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_token_that_has_changed_on_disk_is_found(corpus: FolderCorpus, split: str) -> None:
    tokens.tokenised(corpus, 300)
    (path,) = (tokens.cache() / "text").glob(f"*/{split}.npy")
    content = bytearray(path.read_bytes())
    content[-4] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"is damaged \({split}\.npy is not what was written\): delete it"):
        tokens.tokenised(corpus, 300)


def test_runs_that_start_together_tokenise_once(
    corpus: FolderCorpus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, make, begun = [], tokens._make, threading.Event()

    def slow(*given: object) -> None:
        begun.set()
        time.sleep(0.3)
        made.append(given)
        make(*given)

    monkeypatch.setattr(tokens, "_make", slow)
    first = threading.Thread(target=tokens.tokenised, args=(corpus, 300))
    first.start()
    assert begun.wait(60)
    found = tokens.tokenised(corpus, 300)
    first.join()
    assert len(made) == 1 and len(found.streams["train"]) > 100
    assert "waiting for another run, which tokenises the corpus" in capsys.readouterr().err


def test_tokens_are_in_an_ordinary_file_of_any_length(tmp_path: Path) -> None:
    for count in (0, 3, 12345):
        tokens._write(tmp_path / "x.npy", iter([np.arange(count, dtype=np.uint32)]), np.uint32)
        assert np.load(tmp_path / "x.npy").tolist() == list(range(count))


def test_a_full_disk_is_told_and_nothing_is_left(corpus: FolderCorpus) -> None:
    (corpus.folder / "train.txt").write_text("\n".join(LINES * 100))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Too small for the tokeniser, then for the tokens.
    for most in (1000, 40_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
        try:
            with pytest.raises(ValueError, match=r"text cannot be written \(.*\): set XDG_CACHE_HOME to another place"):
                tokens.tokenised(corpus, 300)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert not [path for path in (tokens.cache() / "text").iterdir() if path.suffix != ".lock"]
    assert tokens.tokenised(corpus, 300).vocabulary == 300


def test_the_validation_text_is_read_before_all_is_tokenised(
    corpus: FolderCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_write", lambda *_: pytest.fail("is tokenised already"))
    (corpus.folder / "valid.txt").write_text("caf\xe9", encoding="latin-1")
    with pytest.raises(ValueError, match=r"valid\.txt is not text in UTF-8"):
        tokens.tokenised(corpus, 300)
    (corpus.folder / "valid.txt").write_text("\n \n")
    with pytest.raises(ValueError, match="the validation text of the corpus is empty"):
        tokens.tokenised(corpus, 300)


def test_a_cache_that_cannot_be_read_or_written_is_told(
    corpus: FolderCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (corpus.folder / "folder.txt").mkdir()
    tokens.tokenised(corpus, 300)
    (kept,) = (path for path in (tokens.cache() / "text").iterdir() if path.is_dir())
    whole = (kept / "train.npy").read_bytes()
    (kept / "train.npy").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"{kept} is damaged \(.*\): delete it, and it is made again"):
        tokens.tokenised(corpus, 300)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ValueError, match=r"text cannot be written \(Not a directory\): set XDG_CACHE_HOME to another"):
        tokens.tokenised(corpus, 300)


def test_what_cannot_be_read_is_told(corpus: FolderCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=r"no text in .*data\.corpus\.train=\*\.txt fits no file"):
        tokens.tokenised(FolderCorpus(str(corpus.folder / "none")), 300)
    for pattern in ("/etc/*.txt", ".", "..", "**"):
        with pytest.raises(ValueError, match=rf"data\.corpus\.train={re.escape(pattern)} must be file names of"):
            FolderCorpus(str(corpus.folder), train=pattern)
    with pytest.raises(ValueError, match="less than one block"):
        CausalLanguageData(corpus, **sizes(block=30_000)).model_arguments()
    with pytest.raises(FileNotFoundError, match=r"all files of data\.corpus\.train=train\.txt are for validation"):
        FolderCorpus(str(corpus.folder), train="train.txt", validation="*.txt").files("train")
    (corpus.folder / "train.txt").write_bytes(b"\xef\xbb\xbffine\n" * 9_000 + b"no\xfe\n")
    assert next(corpus.documents("train")) == "fine"  # without its byte-order mark
    with pytest.raises(ValueError, match=r"train\.txt is not text in UTF-8: .* in line 9,001, at byte 72002"):
        tokens.tokenised(corpus, 300)
    assert sum(path.is_dir() for path in (tokens.cache() / "text").iterdir()) == 1, "of what failed nothing is left"
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        ValueError, match=r"needs tokenizers, which is not installed: pip install 'eureka-lab\[language\]'"
    ):
        tokens.tokenised(corpus, 300)
    monkeypatch.setitem(sys.modules, "datasets", sys.modules["lab.datasets"])  # as found where it is not installed
    with pytest.raises(ValueError, match="needs datasets"):
        next(HubCorpus("someone/something").documents("train"))


def test_the_hub_s_first_documents_validate(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets, hub = pytest.importorskip("datasets"), pytest.importorskip("huggingface_hub")
    rows: list[dict] = [{"text": str(number)} for number in range(10)]
    read: list[str] = []
    pushed = iter(["first", "second"])

    def stream(*_given: object, revision: str, **_named: object) -> Iterator[object]:
        read.append(revision)
        return (row or 1 / 0 for row in rows)

    monkeypatch.setattr(datasets, "load_dataset", stream)
    monkeypatch.setattr(hub.HfApi, "dataset_info", lambda *_: SimpleNamespace(sha=next(pushed)))
    corpus = HubCorpus("someone/something", documents=4, validation_documents=3)
    assert list(corpus.documents("validation")) == ["0", "1", "2"]
    assert list(corpus.documents("train")) == ["3", "4", "5", "6"]
    with pytest.raises(ValueError, match=r"no text among those after the first 1,000 documents.*validation_documents="):
        next(HubCorpus("someone/something", revision="v1").documents("train"))
    assert read == ["first", "first", "v1"], "what is pushed in between changes nothing"
    with pytest.raises(ValueError, match=r"column=body is no column of someone/something; it has text"):
        next(HubCorpus("someone/something", column="body").documents("validation"))
    rows[4]["text"] = " \n"
    assert list(corpus.documents("train")) == ["3", "5", "6"]
    rows[5] = {"text": 5}
    with pytest.raises(ValueError, match=r"data\.corpus\.column=text of someone/something holds no text, but 5"):
        list(corpus.documents("train"))
    rows[5] = {}
    with pytest.raises(ValueError, match=r"someone/something cannot be read from the Hugging Face Hub: division"):
        list(corpus.documents("train"))


@pytest.mark.real_data
def test_wikitext_is_a_corpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = Path(os.environ.get("EUREKA_DATA", "")) / "wikitext-2"
    if not os.environ.get("EUREKA_DATA") or not folder.is_dir():
        pytest.skip("EUREKA_DATA does not name a folder that holds wikitext-2/")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = MaskedLanguageData(FolderCorpus(str(folder)))
    data.setup()
    prior = data.prior_loss()
    assert data.tokens.vocabulary == 8192 and prior is not None and 6 < prior < 8
