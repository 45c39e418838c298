"""A look into a model of another library: by its name there, at a text, at pictures or at random inputs."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT, small_gpt2
from PIL import Image

import lab
from lab.callbacks.diagnostics.attention_entropy import AttentionEntropy
from lab.callbacks.diagnostics.head_entropy import PROMPT, HeadEntropy
from lab.config.look_arguments import look_arguments
from lab.console import LabError
from lab.inspect import main
from lab.models.composed_softmax import softmax_config
from lab.models.libraries.hf import Named
from lab.observation.attention_statistics import weight_entropy
from lab.observation.subject import Subject
from lab.training.inspect_model import _opened, _pictures, _words, inspect_model
from lab.training.looks import Looks

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[language]'")
hub = pytest.importorskip("huggingface_hub.constants")

TEXT = "To see is to forget the name of the thing one sees. " * 12


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of a GPT-2 with its tokenizer, a ViT and a CLIP of both, and what is wrong in others."""
    folder = tmp_path_factory.mktemp("models")
    small_gpt2(folder / "gpt2")
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    seen = {**small, "image_size": 16, "patch_size": 4}
    transformers.ViTModel(transformers.ViTConfig(**seen)).save_pretrained(folder / "vit")
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder / "vit")
    text = {**small, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1}
    both = transformers.CLIPConfig(text_config=text, vision_config=seen)
    transformers.CLIPModel(both).save_pretrained(folder / "clip")
    # Configs without weights: what is refused has to be so before weights are asked for.
    transformers.T5Config(vocab_size=50, d_model=32, d_kv=16, num_layers=1, num_heads=2).save_pretrained(folder / "t5")
    transformers.Gemma2Config(**text).save_pretrained(folder / "gemma2")
    shutil.copytree(folder / "gpt2", folder / "pickled")
    (folder / "pickled" / "model.safetensors").unlink()
    torch.save({}, folder / "pickled" / "pytorch_model.bin")
    (folder / "coded").mkdir()
    code = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}
    (folder / "coded" / "config.json").write_text(json.dumps(code))
    (folder / "coded" / "mine.py").write_text("raise SystemExit('the code of others has run')")
    (folder / "timm").mkdir()
    (folder / "timm" / "config.json").write_text("{}")
    (folder / "broken").mkdir()
    (folder / "broken" / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    (folder / "pictures").mkdir()
    for index in range(3):
        # Greys of 16 bit, which Pillow's own conversion would turn white.
        Image.fromarray(np.full((20, 30), 80 * 256 * index, np.uint16)).save(folder / "pictures" / f"{index}.png")
    return folder


def test_a_text_is_shown_in_blocks_as_lab_look_would_show_them(models: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "book.txt").write_text(TEXT)
    typed = [f"model=hf:{models / 'gpt2'}", f"text={tmp_path / 'book.txt'}", "tokens=16", "inputs=3", f"out={tmp_path}"]
    typed += ["diagnostics=[attention_entropy,sink_values]", "softmax=norm_softmax", "softmax.statistic=std"]
    inspect_model(**look_arguments(typed))
    told = {line.removeprefix("written: ") for line in capsys.readouterr().err.splitlines() if "written: " in line}
    assert told == {str(path) for path in tmp_path.rglob("*") if path.is_file() and path.name != "book.txt"}
    tokens = transformers.AutoTokenizer.from_pretrained(models / "gpt2")(TEXT)["input_ids"][:48]
    model = transformers.GPT2Model.from_pretrained(models / "gpt2")
    lab.replace_softmax(model, "norm_softmax", statistic="std")
    (own,) = lab.look(model, torch.tensor(tokens).view(3, 16), [AttentionEntropy("look")])
    table = pd.read_csv(tmp_path / "diagnostics" / "attention_entropy.csv")
    assert list(table)[:2] == ["layer", "head"]
    assert table["entropy"].to_numpy() == pytest.approx([row["entropy"] for row in own.rows], rel=1e-4)
    note = json.loads((tmp_path / "attention_entropy.json").read_text())
    assert note["softmax"] == "norm_softmax softmax.statistic=std" and note["inputs"] == 3 and note["input"] == [16]
    with pytest.raises(lab.LabError, match="force=true"):
        inspect_model(**look_arguments(typed))


def test_a_text_may_begin_like_a_folder() -> None:
    assert _words("~ 5 apples, please", 100) == "~ 5 apples, please"


def test_pictures_keep_their_greys(models: Path) -> None:
    assert [np.asarray(_opened(path)).max() for path in _pictures(models / "pictures", 9)] == [0, 80, 160]


@pytest.mark.parametrize(
    "typed",
    [
        ["model=hf:MODELS/vit", "images=MODELS/pictures"],
        ["model=timm:test_vit", "weights=false", "inputs=1"],
    ],
)
def test_pictures_are_seen_patch_by_patch(models: Path, tmp_path: Path, typed: list[str]) -> None:
    typed = [word.replace("MODELS", str(models)) for word in typed]
    inspect_model(**look_arguments([*typed, "diagnostics=[attention_maps,attention_mass]", f"out={tmp_path}"]))
    drawn = {path.stem for path in (tmp_path / "pictures" / "attention_maps").iterdir()}
    assert drawn == {"heads", "layers", "answer", "rollout"}
    count = 1 if "inputs=1" in typed else 3
    with np.load(tmp_path / "diagnostics" / "attention_maps" / "arrays.npz") as arrays:
        assert arrays["received"].shape[1] == count
        assert arrays["received"].sum(-1) == pytest.approx(1, abs=0.01)
    note = json.loads((tmp_path / "attention_maps.json").read_text())
    assert note["inputs"] == (1 if count == 1 else 3) and note["input"][0] == 3


def test_roberta_takes_the_tokens_that_stand_behind_its_padding(tmp_path: Path) -> None:
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    roberta = transformers.RobertaConfig(vocab_size=50, max_position_embeddings=34, **small)
    transformers.RobertaModel(roberta).save_pretrained(tmp_path / "roberta")
    typed = [f"model=hf:{tmp_path / 'roberta'}", "diagnostics=[sink_values]", f"out={tmp_path / 'out'}"]
    with pytest.raises(lab.LabError, match="tokens=33: the model takes at most 32"):
        inspect_model(**look_arguments([*typed, "tokens=33"]))
    inspect_model(**look_arguments(typed))


def test_random_weights_first_layers_and_parts(models: Path, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    shutil.copy(models / "gpt2" / "config.json", tmp_path / "config")
    of_all = {"callbacks": ["callbacks=[attention_entropy]"], "inputs": 2, "tokens": 8, "force": True}
    for options, layers in (
        ({"model": f"hf:{tmp_path / 'config'}", "weights": False}, 2),
        ({"model": f"hf:{models / 'gpt2'}", "layers": 1}, 1),
        ({"model": f"hf:{models / 'clip'}", "kind": "CLIPTextModel", "softmax": "hard"}, 2),
    ):
        out = inspect_model(**options, **of_all, out=tmp_path / "look")
        assert pd.read_csv(out / "diagnostics" / "attention_entropy.csv")["layer"].nunique() == layers


def test_a_tokenizer_written_in_python_gives_the_whole_text(tmp_path: Path) -> None:
    transformers.T5Config(vocab_size=400, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2).save_pretrained(
        tmp_path
    )
    transformers.ByT5Tokenizer().save_pretrained(tmp_path)
    named = Named(str(tmp_path), weights=False, kind="T5EncoderModel")
    (whole,), blocks = named.encode(TEXT), named.encode(TEXT, 32)
    end = whole[-1]
    assert all(len(block) <= 32 and block[-1] == end for block in blocks)
    assert [token for block in blocks for token in block[:-1]] == whole[:-1]


def test_first_layers_are_those_of_encoder_and_decoder_or_refused(tmp_path: Path) -> None:
    both = transformers.BartConfig(
        vocab_size=50, d_model=32, encoder_layers=3, decoder_layers=3, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
    )  # fmt: skip
    both.save_pretrained(tmp_path / "bart")
    cut: Any = Named(str(tmp_path / "bart"), weights=False, layers=1).empty
    assert len(cut.encoder.layers) == len(cut.decoder.layers) == 1
    stages = transformers.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[1, 2])
    stages.save_pretrained(tmp_path / "swin")
    with pytest.raises(LabError, match=r"layers=1: .*swin has stages \(depths=\[2, 2\]\)"):
        Named(str(tmp_path / "swin"), weights=False, layers=1)


def test_what_is_put_on_a_trained_model(models: Path, tmp_path: Path) -> None:
    found = []
    for softmax in (None, "adaptive_temperature", "entropy_matched", "log_length"):
        out = tmp_path / str(softmax)
        inspect_model(f"hf:{models / 'gpt2'}", ["callbacks=[attention_entropy]"], out, softmax=softmax, inputs=1)
        found.append(pd.read_csv(out / "diagnostics" / "attention_entropy.csv")["entropy"].to_numpy())
    for index, own in enumerate(found):
        assert np.isfinite(own).all()
        assert all(own != pytest.approx(other, rel=1e-3) for other in found[:index])


def test_a_name_in_the_cache_needs_no_network(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cached = tmp_path / "cache" / "models--somebody--small"
    shutil.copytree(models / "gpt2", cached / "snapshots" / "0123abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123abc")
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    inspect_model("hf:somebody/small", ["callbacks=[sink_values]"], tmp_path / "out", text=TEXT, inputs=1)
    assert "asking" not in capsys.readouterr().err
    with pytest.raises(lab.LabError, match=r"hf:somebody/large: its config cannot be loaded: \w+"):
        inspect_model("hf:somebody/large", ["callbacks=[sink_values]"], tmp_path / "other")
    assert "asking the Hugging Face Hub for its config" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["model=bert"], "begin with hf: or timm:"),
        (["model=timm:vit_tony_patch16_224"], "did you mean 'vit_tiny_patch16_224'"),
        (["model=timm:resnet18"], "ResNet has no softmax that could be replaced"),
        (["model=timm:local-dir:MODELS/timm"], "cannot be loaded: its config has no 'architecture'"),
        (["model=hf:MODELS/nothing"], "its config cannot be loaded: it is no folder"),
        (["model=timm:test_vit", "layers=1"], "layers=1 works only with models of Hugging Face"),
        (["model=hf:MODELS/gemma2"], "Gemma2Attention cannot be replaced: it caps its scores"),
        (["model=hf:MODELS/t5", "weights=false"], "choose a part of the model with kind="),
        (["model=hf:MODELS/clip"], "as in kind=CLIPTextModel"),
        (["model=hf:MODELS/gpt2", "kind=GPT2"], "kind=GPT2 is no model of transformers"),
        (["model=hf:MODELS/gpt2", "layers=3"], "gpt2 has 2"),
        (["model=hf:MODELS/gpt2", "tokens=97"], "the model takes at most 96"),
        (["model=hf:MODELS/gpt2", "text=nowhere.txt"], "is no file, no folder and no text of two words"),
        (["model=hf:MODELS/gpt2", "text=MODELS"], "the folder holds no *.txt"),
        (["model=hf:MODELS/gpt2", "images=MODELS"], "images= is for a model of pictures"),
        (["model=hf:MODELS/vit", "text=To see"], "text= is for a model of tokens"),
        (["model=hf:MODELS/vit", "images=MODELS/vit"], "holds no pictures"),
        (["model=hf:MODELS/vit", "images=MODELS/nowhere"], "nowhere is no folder"),
        (["model=hf:MODELS/vit", "images=MODELS/broken"], "a.png cannot be read as an image"),
        (["model=hf:MODELS/vit", "diagnostics=[head_entropy]"], "head_entropy needs a model that reads text"),
        (["model=hf:MODELS/gpt2", "diagnostics=[linear_probes]"], "linear_probes needs scenes"),
        (
            ["model=hf:MODELS/gpt2", "diagnostics=[gradient_norms]"],
            "without kind=AutoModelForCausalLM does not",
        ),
        (["model=hf:MODELS/vit", "diagnostics=[gradient_norms]"], "gradient_norms needs batches and the loss"),
        (["model=hf:MODELS/t5", "trust=mine"], "trust= can be given only with run="),
        (["run=MODELS", "weights=false"], "weights= can be given only with model="),
        (["model=hf:MODELS/gpt2", "tokens=many"], "tokens must be a number from 1"),
        (["model=hf:MODELS/gpt2", "softmax=hart"], "did you mean 'hard'"),
        (["model=hf:MODELS/gpt2", "softmax=norm_softmax,hard"], "softmax=norm_softmax,hard gives several values"),
        (
            ["model=hf:MODELS/gpt2", "diagnostics=[attention_entropy]", "attention_entropy.scenes=1,2"],
            "attention_entropy.scenes=1,2 gives several values",
        ),
        (["model=hf:MODELS/gpt2", "softmax=heat_treatment"], "this model is trained already: leave the schedule out"),
        (["model=hf:MODELS/pickled"], "its weights cannot be loaded: Error no file named model.safetensors"),
        (["model=hf:MODELS/coded"], "its config cannot be loaded"),
    ],
)
def test_wrong_looks_are_answered_in_one_sentence_and_leave_nothing(
    models: Path,
    tmp_path: Path,
    typed: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed = [word.replace("MODELS", str(models)) for word in typed]
    if not any(word.startswith("diagnostics=") for word in typed):
        typed.append("diagnostics=[attention_entropy]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lab.inspect", *typed])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr().err.strip()
    assert words in told and told.count("error: ") == 1 and "Traceback" not in told
    assert not list(tmp_path.iterdir())


def test_gradients_of_a_language_model_are_those_of_its_next_token(models: Path, tmp_path: Path) -> None:
    typed = [f"model=hf:{models / 'gpt2'}", f"text={TEXT}", "tokens=16", "inputs=3", f"out={tmp_path}"]
    inspect_model(**look_arguments([*typed, "kind=AutoModelForCausalLM", "diagnostics=[gradient_norms]"]))
    tokens = transformers.AutoTokenizer.from_pretrained(models / "gpt2")(TEXT)["input_ids"][:48]
    x_BN = torch.tensor(tokens).view(3, 16)
    model = transformers.GPT2LMHeadModel.from_pretrained(models / "gpt2").eval()
    model(x_BN, labels=x_BN).loss.backward()
    table = pd.read_csv(tmp_path / "diagnostics" / "gradient_norms.csv")
    for layer, block in enumerate(model.transformer.h):
        norms = [part.abs().mean().item() for part in block.attn.c_attn.weight.grad.chunk(3, dim=1)]
        assert table.loc[layer, ["q", "k", "v"]].to_numpy(float) == pytest.approx(norms, rel=1e-3)


def test_head_entropy_is_that_of_the_last_token(models: Path, tmp_path: Path, capsys) -> None:
    sizes = "callbacks.head_entropy.sizes=[1,4,512]"
    options = [sizes, "callbacks.head_entropy.draws=3", "callbacks.head_entropy.block=1"]
    inspect_model(f"hf:{models / 'gpt2'}", ["callbacks=[head_entropy]", *options], tmp_path)
    assert "sizes 512 left out" in capsys.readouterr().err
    table = pd.read_csv(tmp_path / "diagnostics" / "head_entropy.csv")
    assert table["items"].tolist() == [1, 1, 4, 4] and (table["low"] < table["high"]).all()
    assert (table["low"] >= 0).all() and (table["high"] <= table["log_n"]).all()
    assert (table["entropy"] < table["log_n"]).all()
    # The same prompts, read by hand.
    model = lab.replace_softmax(transformers.GPT2Model.from_pretrained(models / "gpt2"), "softmax")
    tokenizer = transformers.AutoTokenizer.from_pretrained(models / "gpt2")
    texts: list[str] = []
    one = HeadEntropy(str(tmp_path), block=1, sizes=[4], draws=3)
    one.look(Subject(model, encode=lambda text: texts.append(text) or tokenizer(text)["input_ids"]))
    begin, end = PROMPT.split("{seq}")
    items = [[int(item) for item in text.removeprefix(begin).removesuffix(end).split(", ")] for text in texts]
    assert {len(own) for own in items} == {4} and len({str(own) for own in items}) == 3
    recorder = lab.Recorder(model, [1], ("weights",))
    entropies = []
    for text in texts:
        recorder.run(tokenizer(text, return_tensors="pt")["input_ids"])
        entropies.append(weight_entropy(recorder[1]["weights"][0, :, -1]))
    own = table[table["items"] == 4]
    assert own["entropy"].to_numpy() == pytest.approx(torch.stack(entropies).mean(0).numpy(), rel=1e-4)
    with pytest.raises(lab.LabError, match=r"block=2: the model"):
        HeadEntropy(str(tmp_path), block=2).look(Subject(model, encode=lambda text: [1]))
    with pytest.raises(lab.LabError, match="takes at most 3 tokens, and prompts of every size have more"):
        HeadEntropy(str(tmp_path)).look(Subject(model, encode=lambda text: [1] * 5, longest=3))
    with pytest.raises(ValueError, match="must have"):
        HeadEntropy(str(tmp_path), prompt="What is the maximum?")


@pytest.mark.parametrize("page", ["models.md", "diagnostics.md"])
def test_commands_of_the_pages_are_read(page: str, tmp_path: Path) -> None:
    lines = [line for line in (ROOT / "docs" / page).read_text().splitlines() if "lab.inspect" in line]
    commands = [shlex.split(line.split("#")[0])[3:] for line in lines if line.startswith("python -m lab.inspect ")]
    commands = [words for words in commands if words != ["--help"]]
    assert commands
    for words in commands:
        told = look_arguments(words)
        assert Looks(told["callbacks"], tmp_path / "look").names
        if "softmax" in told:
            softmax_config(told["softmax"], *told["softmax_options"])
