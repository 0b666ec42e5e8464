"""What cannot be a target is refused, with what was looked for and what was there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.frozen import FrozenTarget
from dflash_runner.pretrained import read_target, window_of
from families import config_of, make
from safetensors.torch import load_file, save_file
from torch import nn

SMALL = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
BERT = transformers.BertConfig(**SMALL, num_hidden_layers=2)
MODERN = transformers.ModernBertConfig(
    **SMALL, num_hidden_layers=2, pad_token_id=0, cls_token_id=1, sep_token_id=2
)
T5 = transformers.T5Config(vocab_size=50, d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2)
GPT2 = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)


def refused(directory: Path, *, kind: Kind = Kind.INVALID) -> str:
    """The message, and the hint, of the refusal to read a directory."""
    with pytest.raises(WorkerError) as caught:
        read_target(directory, dtype=torch.float32)
    assert caught.value.kind is kind
    assert str(directory) in caught.value.message or "find blocks" in caught.value.message
    assert len(caught.value.message) < 600
    return f"{caught.value.message} | {caught.value.hint}"


def set_keys(directory: Path, **keys: Any) -> None:
    """Change config.json."""
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    """A good target, to be spoilt."""
    make("qwen3").save_pretrained(tmp_path / "target")
    return tmp_path / "target"


@pytest.mark.parametrize(
    ("model", "says"),
    [
        pytest.param(
            lambda: transformers.BertForMaskedLM(BERT),
            "want a causal language model, got model_type 'bert', architectures ['BertForMaskedLM']",
            id="encoder",
        ),
        pytest.param(
            lambda: transformers.ModernBertForMaskedLM(MODERN),
            "want a causal language model, got model_type 'modernbert'",
            id="encoder without a causal class",
        ),
        pytest.param(
            lambda: transformers.T5ForConditionalGeneration(T5),
            "want a causal language model, got model_type 't5'",
            id="encoder and decoder",
        ),
        pytest.param(
            lambda: transformers.Qwen3ForSequenceClassification(config_of("qwen3")),
            "got model_type 'qwen3', architectures ['Qwen3ForSequenceClassification']",
            id="classifier",
        ),
        pytest.param(
            lambda: transformers.BertLMHeadModel(BERT),
            "find blocks: BertLMHeadModel: looked for a list `layers` of blocks in the decoder that "
            "get_decoder() names, BertModel, got ['embeddings', 'encoder'",
            id="blocks in an encoder",
        ),
        pytest.param(
            lambda: transformers.GPT2LMHeadModel(GPT2),
            "looked for a list `layers` of blocks in the decoder that get_decoder() names, GPT2Model, "
            "got ['wte', 'wpe', 'drop', 'h', 'ln_f']",
            id="blocks by another name",
        ),
    ],
)
def test_other_architectures(tmp_path: Path, model: Any, says: str) -> None:
    made: nn.Module = model()
    made.save_pretrained(tmp_path)
    assert says in refused(tmp_path)


@pytest.mark.parametrize("kind", ["linear_attention", "chunked_attention"])
def test_layers_that_would_mix_packed_documents(qwen: Path, kind: str) -> None:
    kinds = ["full_attention"] * 6
    kinds[3] = kind
    set_keys(qwen, layer_types=kinds)
    want = f"layer_types[3]: want full_attention or sliding_attention, got {kind}"
    assert want in refused(qwen)


def test_a_bidirectional_gemma(tmp_path: Path) -> None:
    make("gemma3").save_pretrained(tmp_path)
    set_keys(tmp_path, use_bidirectional_attention=True)
    assert "use_bidirectional_attention: want false, got true" in refused(tmp_path)


def test_a_weight_that_is_not_there(qwen: Path) -> None:
    """transformers would draw it at random."""
    tensors = load_file(qwen / "model.safetensors")
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, qwen / "model.safetensors", metadata={"format": "pt"})
    said = refused(qwen)
    assert "want every weight of the model, got 1 missing: ['model.layers.2.mlp.up_proj.weight']" in said


def test_a_weight_of_another_shape(qwen: Path) -> None:
    tensors = load_file(qwen / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(31)
    save_file(tensors, qwen / "model.safetensors", metadata={"format": "pt"})
    assert "got 1 of another shape: ['model.norm.weight']" in refused(qwen)


def test_a_directory_without_a_model(tmp_path: Path) -> None:
    assert "want config.json, got none" in refused(tmp_path, kind=Kind.NOT_FOUND)
    (tmp_path / "config.json").write_text("{")
    refused(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "nothing-like-it"}')
    assert "model_type: want one that transformers" in refused(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    refused(tmp_path)


def test_a_directory_without_weights(qwen: Path) -> None:
    (qwen / "model.safetensors").unlink()
    assert "model.safetensors" in refused(qwen)


def test_no_code_of_a_directory_is_run(qwen: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A model of its own code is not loaded, nor asked about."""
    (qwen / "own.py").write_text("print('ran'); raise SystemExit(3)")
    set_keys(qwen, model_type="own", auto_map={"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"})
    refused(qwen)
    assert "ran" not in capfd.readouterr().out


@pytest.mark.parametrize("ids", [(), (1, 6)])
def test_a_captured_layer_that_is_not_there(qwen: Path, ids: tuple[int, ...]) -> None:
    with pytest.raises(WorkerError, match=r"target.layer_ids: want 0 to 5, got \["):
        FrozenTarget(qwen, dtype=torch.float32, layer_ids=ids)


def test_windows_are_those_that_some_layer_has(qwen: Path) -> None:
    """Qwen3 names one without using it."""
    set_keys(qwen, sliding_window=7, layer_types=["full_attention"] * 6)
    assert window_of(read_target(qwen, dtype=torch.float32)) is None
