"""Exported drafters: complete, bit-equal when read back, and refused when something is off."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.export import export, load_drafter, masters_of
from numerics import drafter_config, make_drafter
from safetensors.torch import load_file, save_file

CONFIG = drafter_config(layers=5)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An exported drafter in float32."""
    made = tmp_path / "drafter"
    export(make_drafter(CONFIG).state_dict(), config=CONFIG, directory=made, dtype=torch.float32)
    return made


def change(directory: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Edit config.json."""
    path = directory / "config.json"
    keys = json.loads(path.read_text())
    edit(keys)
    path.write_text(json.dumps(keys))


def test_float32_round_trip_is_bit_equal(directory: Path) -> None:
    loaded = load_drafter(directory)
    assert loaded.config == CONFIG
    want = make_drafter(CONFIG).state_dict()
    assert len(loaded.tensors) == 58
    drafter = loaded.drafter(dtype=torch.float32)
    assert all(torch.equal(tensor, want[name]) for name, tensor in drafter.state_dict().items())
    assert all(parameter.requires_grad for parameter in drafter.parameters())


def test_default_is_bfloat16_and_bit_equal_to_the_rounded_weights(tmp_path: Path) -> None:
    state = make_drafter(CONFIG).state_dict()
    export(state, config=CONFIG, directory=tmp_path / "d")
    stored = load_file(tmp_path / "d" / "model.safetensors")
    assert stored.keys() == state.keys()
    assert all(torch.equal(stored[name], state[name].bfloat16()) for name in state)
    keys = json.loads((tmp_path / "d" / "config.json").read_text())
    assert keys["dtype"] == keys["torch_dtype"] == "bfloat16"
    again = load_drafter(tmp_path / "d").drafter(dtype=torch.float32)
    export(again.state_dict(), config=CONFIG, directory=tmp_path / "e")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "de"]
    assert weights[0] == weights[1]


def test_names_are_those_of_z_lab(directory: Path) -> None:
    layer = "input_layernorm post_attention_layernorm self_attn.q_proj self_attn.k_proj self_attn.v_proj"
    layer += " self_attn.o_proj self_attn.q_norm self_attn.k_norm mlp.gate_proj mlp.up_proj mlp.down_proj"
    want = {"fc.weight", "hidden_norm.weight", "norm.weight"}
    want |= {f"layers.{i}.{name}.weight" for i in range(5) for name in layer.split()}
    assert load_file(directory / "model.safetensors").keys() == want


def test_config_says_everything_that_an_engine_asks(directory: Path) -> None:
    keys = json.loads((directory / "config.json").read_text())
    assert keys["block_size"] == keys["dflash_config"]["block_size"] == CONFIG.block_size
    assert keys["is_causal"] is False and keys["dflash_config"]["causal"] is False
    assert keys["layer_types"] == ["full_attention"] * 5
    assert keys["rope_theta"] == keys["rope_parameters"]["rope_theta"] == 10000.0
    assert keys["dflash_config"]["target_layer_ids"] == [1, 2, 3]
    assert keys["dflash_config"]["mask_token_id"] == 60
    assert keys["num_target_layers"] == 6
    assert keys["hidden_act"] == "silu" and keys["tie_word_embeddings"] is False
    assert "partial_rotary_factor" not in keys


def test_an_image_exports_as_its_masters(tmp_path: Path) -> None:
    want = make_drafter(CONFIG).state_dict()
    parts = ("masters", "exp_avg", "exp_avg_sq")
    save_file(
        {f"{part}.{n}": t + 1 * (part != "masters") for part in parts for n, t in want.items()},
        tmp_path / "i",
    )
    export(masters_of(tmp_path / "i"), config=CONFIG, directory=tmp_path / "d", dtype=torch.float32)
    got = load_drafter(tmp_path / "d").tensors
    assert got.keys() == want.keys() and all(torch.equal(got[name], want[name]) for name in want)


def test_an_image_without_masters_is_refused(tmp_path: Path) -> None:
    save_file({"exp_avg.fc.weight": torch.zeros(1)}, tmp_path / "i")
    with pytest.raises(WorkerError, match=r"want tensors masters\.\*, got none"):
        masters_of(tmp_path / "i")


def test_a_directory_that_is_there_is_not_touched(directory: Path) -> None:
    before = (directory / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="there already"):
        export(make_drafter(CONFIG, seed=9).state_dict(), config=CONFIG, directory=directory)
    assert (directory / "model.safetensors").read_bytes() == before
    assert [p.name for p in directory.parent.iterdir()] == [directory.name]


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    state = make_drafter(CONFIG).state_dict()
    del state["norm.weight"]
    with pytest.raises(WorkerError, match=r"missing \['norm.weight'\]"):
        export(state, config=CONFIG, directory=tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def put(field: str, value: object) -> Callable[[dict[str, Any]], None]:
    """An edit that sets `field`, nested by dots."""

    def edit(keys: dict[str, Any]) -> None:
        *outer, last = field.split(".")
        for name in outer:
            keys = keys[name]
        keys[last] = value

    return edit


def drop(*fields: str) -> Callable[[dict[str, Any]], None]:
    """An edit that removes `fields`, nested by dots."""

    def edit(keys: dict[str, Any]) -> None:
        for field in fields:
            *outer, last = field.split(".")
            inner = keys
            for name in outer:
                inner = inner[name]
            del inner[last]

    return edit


REFUSED = {
    "ids missing": (drop("dflash_config.target_layer_ids"), "target_layer_ids: want a list"),
    "id too high": (put("dflash_config.target_layer_ids", [1, 2, 6]), "from 0 to 5"),
    "no block size": (drop("block_size", "dflash_config.block_size"), "block_size: want a whole"),
    "two block sizes": (put("block_size", 16), "block_size: want dflash_config.block_size 5"),
    "no mask id": (drop("dflash_config.mask_token_id"), "mask_token_id: want a whole"),
    "mask id outside": (put("dflash_config.mask_token_id", 61), "below vocab_size 61"),
    "no target layers": (drop("num_target_layers"), "num_target_layers: want"),
    "causal": (put("is_causal", True), "is_causal: want False"),
    "nested causal": (put("dflash_config.causal", True), "dflash_config.causal: want"),
    "sliding": (put("layer_types", ["sliding_attention"] * 5), "layer_types: want"),
    "two rope bases": (put("rope_theta", 1e6), "rope_theta: want one number"),
    "no rope base": (drop("rope_theta", "rope_parameters"), "rope_theta: want one number"),
    "rope scaling": (put("rope_scaling", {"rope_type": "yarn"}), "rope_scaling: want"),
    "DFlash2": (put("architectures", ["DFlash2DraftModel"]), "architectures: want"),
    "scaled embedding": (put("dflash_config.input_embedding_scale", 5.66), "input_embedding_scale: want 1.0"),
    "scaled output": (put("dflash_config.output_multiplier", 2.0), "output_multiplier: want 1.0"),
    "capped logits": (put("dflash_config.final_logit_softcapping", 30.0), "softcapping: want None, got 30"),
    "sinks": (put("dflash_config.attention_sink_bias", True), "attention_sink_bias: want False"),
    "anchors sampled": (put("dflash_config.sample_from_anchor", True), "sample_from_anchor: want False"),
    "activation": (put("hidden_act", "gelu"), "hidden_act: want 'silu'"),
    "fewer layers than weights": (put("num_hidden_layers", 4), "unknown .'layers.4"),
    "another shape": (put("head_dim", 16), r"self_attn.\w+.weight: want shape"),
}


@pytest.mark.parametrize(("edit", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_config_that_engines_let_pass_is_refused(
    directory: Path, edit: Callable[[dict[str, Any]], None], message: str
) -> None:
    change(directory, edit)
    with pytest.raises(WorkerError, match=message) as caught:
        load_drafter(directory)
    assert caught.value.kind is Kind.INVALID
    assert str(directory) in caught.value.message or "build drafter" in caught.value.message


@pytest.mark.parametrize("pop", ["rope_theta", "rope_parameters", "block_size"])
def test_one_of_two_spellings_is_enough(directory: Path, pop: str) -> None:
    change(directory, drop(pop))
    assert load_drafter(directory).config == CONFIG


def test_embedding_rows_are_raw_for_every_loader(directory: Path) -> None:
    """No scale is written, whose default is 1; where somebody wrote 1, it reads the same."""
    nested = json.loads((directory / "config.json").read_text())["dflash_config"]
    assert "input_embedding_scale" not in nested and "output_multiplier" not in nested
    change(directory, put("dflash_config.input_embedding_scale", 1))
    assert load_drafter(directory).config == CONFIG


def test_prefixed_weights_are_refused(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    save_file({f"model.{name}": tensor for name, tensor in tensors.items()}, directory / "model.safetensors")
    with pytest.raises(WorkerError, match=r"model.safetensors: want the 58 tensors") as caught:
        load_drafter(directory)
    assert "no prefix" in caught.value.hint


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(directory: Path, name: str) -> None:
    (directory / name).unlink()
    with pytest.raises(WorkerError, match=name) as caught:
        load_drafter(directory)
    assert caught.value.kind is Kind.NOT_FOUND


def test_a_config_that_is_not_json_is_refused(directory: Path) -> None:
    (directory / "config.json").write_text("{")
    with pytest.raises(WorkerError, match="want a JSON object"):
        load_drafter(directory)
    shutil.rmtree(directory)
