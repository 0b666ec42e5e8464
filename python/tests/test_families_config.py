"""What the supervisor takes where a config.json is silent is what transformers takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

TABLE = Path(__file__).resolve().parents[2] / "runner" / "config" / "families.json"
FAMILIES: dict[str, dict[str, Any]] = json.loads(TABLE.read_text())
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
