"""What the supervisor takes where a config.json is silent is what transformers takes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from families import config_of, wrapped_config
from transformers import CONFIG_MAPPING

HOST = Path(__file__).resolve().parents[2] / "runner" / "config"
FAMILIES: dict[str, dict[str, Any]] = json.loads((HOST / "families.json").read_text())
SAVED = HOST / "testdata" / "saved.json"
SAVED_FAMILIES = ("gemma3", "llama", "mistral", "qwen3", "qwen3-moe", "qwen3-windows")
FOLLOWS = {"num_key_value_heads": 6, "head_dim": 16}  # of 6 heads in 96, where the table is silent
SIZES = {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "rope_theta"}


def theta(config: Any) -> float:
    """Of the layers that see everything."""
    parameters = config.rope_parameters
    return parameters.get("full_attention", parameters)["rope_theta"]


@pytest.mark.parametrize("kind", FAMILIES)
def test_defaults_are_those_of_transformers(kind: str) -> None:
    config = CONFIG_MAPPING[kind]()
    assert set(FAMILIES[kind]) >= SIZES
    for name, value in FAMILIES[kind].items():
        assert (theta(config) if name == "rope_theta" else getattr(config, name)) == value, name


@pytest.mark.parametrize("kind", FAMILIES)
def test_what_is_left_out_follows_from_the_rest(kind: str) -> None:
    config = CONFIG_MAPPING[kind](hidden_size=96, num_attention_heads=6)
    for name, value in FOLLOWS.items():
        if name not in FAMILIES[kind]:
            assert getattr(config, name, None) in (None, value), name


def test_the_host_reads_what_transformers_saves(tmp_path: Path) -> None:
    """Written anew where DFLASH_RUNNER_UPDATE is set: then look at what the host's test makes of it."""
    configs = {name: config_of(name) for name in SAVED_FAMILIES} | {"gemma3-wrapped": wrapped_config()}
    saved = {}
    for name, config in sorted(configs.items()):
        config.save_pretrained(tmp_path / name)
        saved[name] = json.loads((tmp_path / name / "config.json").read_text())
        del saved[name]["transformers_version"]
    if os.environ.get("DFLASH_RUNNER_UPDATE"):
        SAVED.write_text(json.dumps(saved, indent=1, sort_keys=True) + "\n")
    assert json.loads(SAVED.read_text()) == saved
