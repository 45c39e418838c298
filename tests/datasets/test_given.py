"""A tokeniser of one's own takes the place of the one that is trained on the corpus."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from lab.datasets.text import tokens
from lab.datasets.text.corpus import FolderCorpus
from lab.datasets.text.data import CausalLanguageData, MaskedLanguageData
from lab.datasets.text.given import given_tokenizer
from lab.datasets.text.special import Special

tokenizers = pytest.importorskip("tokenizers", reason="the extra language is not installed")

LINES = [f"{name} has {count} hats ." for name in ("Ada", "Bo", "Cy") for count in range(60)]
SIZES = {"block": 16, "batch_size": 4, "epoch_size": 32, "validation_size": 10}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderCorpus:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "corpus").mkdir()
    for name in ("train.txt", "valid.txt"):
        (tmp_path / "corpus" / name).write_text("\n".join(LINES))
    return FolderCorpus(str(tmp_path / "corpus"))


def like_bert(folder: Path) -> Path:
    """A tokeniser with BERT's special tokens, which frames, cuts and pads what it encodes."""
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    made.train_from_iterator(LINES, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.enable_truncation(4)
    made.enable_padding(length=9)
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    return folder


def like_gpt2(path: Path, *special: str) -> Path:
    """A byte-level BPE whose special tokens come last."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        LINES, tokenizers.trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens(list(special))
    made.save(str(path))
    return path


def test_documents_are_whole_and_end_by_its_own_token(corpus: FolderCorpus, tmp_path: Path) -> None:
    data = MaskedLanguageData(corpus, **SIZES, tokenizer=str(like_bert(tmp_path / "bert")))
    data.setup()
    stream = data.tokens.streams["train"]
    assert int((stream == 3).sum()) == len(LINES) and not {0, 2} & set(stream.tolist())
    assert "".join(data.tokens.words(stream[:8].tolist())).startswith("Adahas0hats.[SEP]")
    (shown, _), asked = (batch := data.on_after_batch_transfer(data.draw_train(0, 0), 0))["x"], batch["y"]
    assert int((shown == 4).sum()) > 0 and bool((asked > 4).all()) and len(data.tokens.encode(LINES[0])) > 4
    assert "data.vocabulary=8192 is not used" in data.remarks()[0]
    assert data.model_arguments() == {"num_classes": data.tokens.vocabulary, "masked_context": 16, "end_token": 3}


def test_special_tokens_may_have_any_numbers(corpus: FolderCorpus, tmp_path: Path) -> None:
    path = like_gpt2(tmp_path / "own.json", "<|endoftext|>", "<mask>")
    data = MaskedLanguageData(corpus, **SIZES, tokenizer=str(path))
    data.setup()
    vocabulary = data.tokens.vocabulary
    assert data.tokens.special == Special(
        {vocabulary - 2: "<|endoftext|>", vocabulary - 1: "<mask>"}, vocabulary - 2, vocabulary - 1
    )
    drawn = [data.draw_train(epoch, 0) for epoch in range(50)]
    assert max(int(one["random"].max()) for one in drawn) < vocabulary - 2
    asked = torch.cat([data.on_after_batch_transfer(one, 0)["y"] for one in drawn])
    assert int(asked.min()) >= 0 and int(asked.max()) < vocabulary - 2


def test_the_cache_goes_by_the_tokeniser_s_content_and_knows_its_own(corpus: FolderCorpus, tmp_path: Path) -> None:
    trained = tokens.tokenised(corpus, 300)
    own = tmp_path / "tokenizer.json"
    own.write_bytes(trained.file.read_bytes())
    assert tokens.tokenised(corpus, 300, given_tokenizer(str(own), masks=True)).file == trained.file
    other = tokens.tokenised(corpus, 300, given_tokenizer(str(like_gpt2(tmp_path / "a.json", "</s>")), masks=False))
    assert other.file != trained.file and other.file.read_bytes() == (tmp_path / "a.json").read_bytes()
    again = tokens.tokenised(corpus, 999, given_tokenizer(str(tmp_path / "a.json"), masks=False))
    assert again.file == other.file


def test_what_is_no_tokeniser_is_told_before_anything_is_tokenised(
    corpus: FolderCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_make", lambda *_: pytest.fail("is tokenised already"))
    (tmp_path / "text.json").write_text(json.dumps({"model": 1}))
    end = like_gpt2(tmp_path / "none.json")
    many = json.loads(end.read_text())
    many["model"]["vocab"]["far"] = 2**31
    (tmp_path / "many.json").write_text(json.dumps(many))
    mask = like_gpt2(tmp_path / "end.json", "<|endoftext|>")
    # Rust gives up here, with an error that is no Exception.
    broken = json.loads(mask.read_text()) | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    said = {
        tmp_path / ("x" * 300): r"there is no ",
        tmp_path / "broken.json": r"is no tokenizer\.json of Hugging Face tokenizers: ",
        tmp_path / "nowhere": r"there is no .*nowhere; name a tokenizer\.json of Hugging Face tokenizers, or a folder",
        tmp_path / "corpus": r"there is no .*corpus/tokenizer\.json; name",
        tmp_path / "text.json": r"is no tokenizer\.json of Hugging Face tokenizers: ",
        tmp_path / "many.json": r"numbers a token 2,147,483,648, and 2,097,152 tokens are the most",
        end: r"has no token that ends a document: one of </s>, <\|endoftext\|>, .* flagged special",
        mask: r"has no token that hides a word: one of <mask>, \[MASK\] must be among its added tokens",
    }
    for path, words in said.items():
        with pytest.raises(ValueError, match=rf"^data\.tokenizer={re.escape(str(path))}:? {words}"):
            MaskedLanguageData(corpus, **SIZES, tokenizer=str(path)).model_arguments()
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "end_token" in CausalLanguageData(corpus, **SIZES, tokenizer=str(mask)).model_arguments()


def test_a_tokeniser_that_lacks_its_unknown_token_is_told(corpus: FolderCorpus, tmp_path: Path) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"</s>": 0, "hats": 1}, unk_token="[UNK]"))
    made.add_special_tokens(["</s>"])
    made.save(str(tmp_path / "own.json"))
    with pytest.raises(ValueError, match=r"^data.tokenizer cannot read the text of the corpus: .*UNK"):
        CausalLanguageData(corpus, **SIZES, tokenizer=str(tmp_path / "own.json")).model_arguments()


def test_a_beginning_that_is_not_the_lab_s_is_told_to_the_model(corpus: FolderCorpus, tmp_path: Path) -> None:
    """As in Llama's files, whose end has the lab's number and whose beginning has another."""
    of_llama = json.loads(like_gpt2(tmp_path / "own.json").read_text())
    special = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    names = ("<unk>", "<s>", "</s>")
    of_llama["added_tokens"] = [{"id": number, "content": name, **special} for number, name in enumerate(names)]
    vocab = [*names, *(name for name in of_llama["model"]["vocab"] if name not in names)]
    of_llama["model"]["vocab"] = {name: number for number, name in enumerate(vocab)}
    (tmp_path / "own.json").write_text(json.dumps(of_llama))
    facts = CausalLanguageData(corpus, **SIZES, tokenizer=str(tmp_path / "own.json")).model_arguments()
    assert facts["end_token"] == 2


def test_only_byte_level_tokenisers_keep_all_of_a_text(corpus: FolderCorpus, tmp_path: Path) -> None:
    assert tokens.tokenised(corpus, 300).keeps_bytes
    bert = given_tokenizer(str(like_bert(tmp_path / "bert")), masks=True)
    assert not tokens.tokenised(corpus, 300, bert).keeps_bytes
    # One that puts a space before each text, and one that takes all spaces away.
    before = tokenizers.pre_tokenizers
    kinds = [[before.ByteLevel(add_prefix_space=True)], [before.WhitespaceSplit(), before.ByteLevel(False)]]
    for number, kind in enumerate(kinds):
        own = tokenizers.Tokenizer.from_file(str(like_gpt2(tmp_path / "own.json", "<|endoftext|>")))
        own.decoder, own.pre_tokenizer = tokenizers.decoders.ByteLevel(), before.Sequence(kind)
        own.save(str(tmp_path / f"{number}.json"))
        given = given_tokenizer(str(tmp_path / f"{number}.json"), masks=False)
        assert not tokens.tokenised(corpus, 300, given).keeps_bytes
