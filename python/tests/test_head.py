"""The frozen embedding and head, read from a target's directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from dflash_runner import head
from dflash_runner.errors import Kind, WorkerError
from safetensors.torch import load_file, save_file
from tiny import make_target, prompt


def saved(directory: Path, *, tied: bool = False, shard: str = "5GB") -> torch.nn.Module:
    """A tiny target, saved as transformers saves it."""
    target = make_target(layers=2, tied=tied)
    target.save_pretrained(directory, max_shard_size=shard)
    return target


def set_key(directory: Path, **keys: object) -> None:
    """Change config.json."""
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


@pytest.mark.parametrize(("tied", "shard"), [(False, "5GB"), (True, "5GB"), (False, "20KB")])
def test_embedding_and_head_are_the_targets(tmp_path: Path, tied: bool, shard: str) -> None:
    target = saved(tmp_path, tied=tied, shard=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() is (shard == "20KB")
    frozen = head.load(tmp_path, dtype=torch.float32)
    hidden = target.model(input_ids=prompt(9)[None]).last_hidden_state
    assert torch.equal(frozen.logits(hidden), target.lm_head(hidden).float())
    assert torch.equal(frozen.embed(prompt(9)), target.model.embed_tokens(prompt(9)))
    assert (frozen.head_VD is frozen.embedding_VD) is tied
    assert not frozen.embedding_VD.requires_grad and not frozen.head_VD.requires_grad


def test_rows_are_raw_whatever_the_model_multiplies_them_by(tmp_path: Path) -> None:
    saved(tmp_path)
    set_key(
        tmp_path, architectures=["GemmaForCausalLM"], model_type="gemma"
    )  # its embedding scales by sqrt(D)
    rows = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(head.load(tmp_path, dtype=torch.float32).embed(prompt(5)), rows[prompt(5)])


def test_text_part_of_a_larger_model_is_found(tmp_path: Path) -> None:
    saved(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {name.replace("model.", "model.language_model."): tensor for name, tensor in tensors.items()}
    renamed["model.visual.embed_tokens.weight"] = torch.zeros(3, 3)
    save_file(renamed, tmp_path / "model.safetensors")
    keys = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"text_config": keys, "model_type": "other"}))
    frozen = head.load(tmp_path, dtype=torch.float32)
    assert torch.equal(frozen.embedding_VD, tensors["model.embed_tokens.weight"])
    assert torch.equal(frozen.head_VD, tensors["lm_head.weight"])


def test_logits_are_float32_in_any_dtype(tmp_path: Path) -> None:
    saved(tmp_path)
    frozen = head.load(tmp_path, dtype=torch.bfloat16)
    assert frozen.head_VD.dtype == torch.bfloat16
    assert frozen.logits(torch.ones(2, 32)).dtype == torch.float32


def test_a_head_that_should_be_there_and_is_not_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, tied=True)
    set_key(tmp_path, tie_word_embeddings=False)
    with pytest.raises(
        WorkerError, match=r"want lm_head.weight.*tie_word_embeddings false, got none"
    ) as caught:
        head.load(tmp_path, dtype=torch.float32)
    assert caught.value.kind is Kind.INVALID


def test_capped_logits_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    set_key(tmp_path, final_logit_softcapping=30.0)
    with pytest.raises(WorkerError, match="final_logit_softcapping: want none"):
        head.load(tmp_path, dtype=torch.float32)
    target = make_target(layers=2)
    target.config.final_logit_softcapping = 30.0
    with pytest.raises(WorkerError, match="final_logit_softcapping: want none"):
        head.of_model(target)


def test_a_model_without_a_head_lends_none() -> None:
    with pytest.raises(WorkerError, match="Qwen3Model: want output embeddings, got none"):
        head.of_model(make_target(layers=2).model)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    saved(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(WorkerError, match=name) as caught:
        head.load(tmp_path, dtype=torch.float32)
    assert caught.value.kind is Kind.NOT_FOUND


def test_two_embeddings_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"other.embed_tokens.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(WorkerError, match="want one tensor"):
        head.load(tmp_path, dtype=torch.float32)
