"""Drafter directories in z-lab's format: written for every engine alike, read with nothing taken on trust."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from dflash_runner.errors import Kind, WorkerError
from dflash_runner.model import Drafter, DrafterConfig
from dflash_runner.whole import whole_directory

ARCHITECTURE = "DFlashDraftModel"
WEIGHTS = "model.safetensors"
DTYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
_MASTERS = "masters."
# Keys that loaders read and this drafter has no use for, and the values that change nothing. Embedding
# rows are raw for every target, Gemma's as well, so input_embedding_scale is never written.
_UNUSED = {
    "input_embedding_scale": (1.0, None),
    "output_multiplier": (1.0, None),
    "final_logit_softcapping": (None,),
    "attention_sink_bias": (False, None),
    "sample_from_anchor": (False, None),
}


def export(
    tensors: Mapping[str, Tensor],
    *,
    config: DrafterConfig,
    directory: Path,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write a drafter's directory, whole or not at all.

    Args:
        tensors: the drafter's parameters by name, as `Drafter.state_dict` or `masters_of` gives them.
        config: the drafter's.
        directory: must not exist, or be empty.
        dtype: of the weights; bfloat16 is what engines expect.

    Raises:
        WorkerError: invalid, where a tensor is missing, unknown or of another shape.
        ValueError: the directory is there already.

    Source: the public dflash package 0.1.0.
    """
    _check_tensors(tensors, config=config, where="export drafter")
    rounded = {
        name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in sorted(tensors.items())
    }
    with whole_directory(directory) as partial:
        save_file(rounded, partial / WEIGHTS, metadata={"format": "pt"})
        text = json.dumps(config_keys(config, dtype=dtype), indent=2, sort_keys=True)
        (partial / "config.json").write_text(text + "\n", encoding="utf-8")


def masters_of(image: Path) -> dict[str, Tensor]:
    """The parameters in an image, float32, by their name in the drafter.

    Raises:
        WorkerError: not_found, where there is no such file; invalid, where it holds no masters.
    """
    if not image.is_file():
        raise WorkerError(Kind.NOT_FOUND, f"read image: {image}: want a file, got none")
    with safe_open(image, framework="pt") as opened:
        masters = {
            n.removeprefix(_MASTERS): opened.get_tensor(n) for n in opened.keys() if n.startswith(_MASTERS)
        }
    if not masters:
        raise WorkerError(Kind.INVALID, f"read image: {image}: want tensors {_MASTERS}*, got none")
    return masters


def config_keys(config: DrafterConfig, *, dtype: torch.dtype) -> dict[str, Any]:
    """config.json. What two readers look for in two places is in both.

    Source: the public dflash package 0.1.0: block_size top-level and nested, both rope spellings, both dtype
    spellings, and the three ways in which engines decide that a block is causal.
    """
    rope_theta = float(config.rope_theta)
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "block_size": config.block_size,
        "dflash_config": {
            "block_size": config.block_size,
            "causal": False,
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": list(config.target_layer_ids),
        },
        "num_target_layers": config.target_layers,
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "is_causal": False,
        "layer_types": ["full_attention"] * config.layers,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": config.layers,
        "rope_theta": rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
        "dtype": DTYPES[dtype],
        "torch_dtype": DTYPES[dtype],
    }


def expected_shapes(config: DrafterConfig) -> dict[str, torch.Size]:
    """Name and shape of every tensor of a drafter."""
    with torch.device("meta"):
        return {name: parameter.shape for name, parameter in Drafter(config).named_parameters()}


def _check_tensors(tensors: Mapping[str, Tensor], *, config: DrafterConfig, where: str) -> None:
    want = expected_shapes(config)
    if want.keys() != tensors.keys():
        missing, unknown = sorted(want.keys() - tensors.keys()), sorted(tensors.keys() - want.keys())
        raise WorkerError(
            Kind.INVALID,
            f"{where}: want the {len(want)} tensors of {config.layers} layers, "
            f"missing {missing[:3]}, unknown {unknown[:3]}",
            hint="tensor names have no prefix, and a drafter has no embedding or head",
        )
    for name, shape in want.items():
        if tensors[name].shape != shape:
            got = list(tensors[name].shape)
            raise WorkerError(Kind.INVALID, f"{where}: {name}: want shape {list(shape)}, got {got}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """A drafter's directory, read."""

    config: DrafterConfig
    tensors: dict[str, Tensor]  # in the file's dtype

    def drafter(self, *, dtype: torch.dtype) -> Drafter:
        """The drafter, its weights in `dtype`."""
        with torch.device("meta"):
            made = Drafter(self.config)
        weights = {name: tensor.to(dtype) for name, tensor in self.tensors.items()}
        made.load_state_dict(weights, assign=True)
        return made


def load_drafter(directory: Path) -> Exported:
    """A drafter of z-lab's format, for training on and for evaluation.

    Raises:
        WorkerError: not_found, where a file is missing; invalid, where config.json leaves out or
            contradicts what decides how a drafter works, or the weights are not what it says. Engines
            let most of that pass and only accept less.

    Source: what dflash 0.1.0 and speculators 0.9.0 really load.
    """
    directory = Path(directory)
    for name in ("config.json", WEIGHTS):
        if not (directory / name).is_file():
            raise WorkerError(Kind.NOT_FOUND, f"load drafter: {directory / name}: want a file, got none")
    config = _Keys(directory / "config.json").config()
    with safe_open(directory / WEIGHTS, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}
    _check_tensors(tensors, config=config, where=f"load drafter: {directory / WEIGHTS}")
    return Exported(config=config, tensors=tensors)


class _Keys:
    """config.json of a drafter, asked key by key: every refusal names file and field."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._keys = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as err:
            raise self._refuse("(whole)", "a JSON object", str(err)) from err
        if not isinstance(self._keys, dict):
            raise self._refuse("(whole)", "a JSON object", type(self._keys).__name__)

    def _refuse(self, field: str, want: str, got: object, *, hint: str = "") -> WorkerError:
        return WorkerError(
            Kind.INVALID, f"load drafter: {self._path}: {field}: want {want}, got {got}", hint=hint
        )

    def _at(self, field: str) -> Any:
        value: Any = self._keys
        for part in field.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def _whole(self, field: str) -> int:
        value = self._at(field)
        if type(value) is not int:
            raise self._refuse(field, "a whole number", value)
        return value

    def _must(self, field: str, *allowed: object) -> None:
        if self._at(field) not in allowed:
            raise self._refuse(field, " or ".join(map(repr, allowed)), repr(self._at(field)))

    def _check_kind(self) -> None:
        """Refuse other models, and any sign that a block is causal or slides."""
        if self._at("architectures") != [ARCHITECTURE]:
            raise self._refuse("architectures", [ARCHITECTURE], self._at("architectures"))
        self._must("model_type", "qwen3")
        self._must("hidden_act", "silu", None)
        self._must("attention_bias", False, None)
        self._must("is_causal", False, None)
        self._must("dflash_config.causal", False, None)
        self._must("dflash_config.use_swa", False, None)
        for field, harmless in _UNUSED.items():  # each makes another function of the same weights
            self._must(f"dflash_config.{field}", *harmless)
        kinds = self._at("layer_types") or []
        if any(kind != "full_attention" for kind in kinds):
            raise self._refuse("layer_types", "full_attention everywhere", kinds)

    def _block_size(self) -> int:
        nested, top = self._at("dflash_config.block_size"), self._at("block_size")
        if nested is None:
            return self._whole("block_size")
        if top is not None and nested != top:
            raise self._refuse("block_size", f"dflash_config.block_size {nested}", top)
        return self._whole("dflash_config.block_size")

    def _rope_theta(self) -> float:
        named = {field: self._at(field) for field in ("rope_parameters.rope_theta", "rope_theta")}
        given = {field: value for field, value in named.items() if isinstance(value, int | float)}
        if len(set(given.values())) != 1:
            raise self._refuse("rope_theta", "one number, here or in rope_parameters", named)
        self._must("rope_parameters.rope_type", "default", None)
        self._must("rope_scaling", None)
        return float(next(iter(given.values())))

    def _layer_ids(self) -> tuple[int, ...]:
        ids = self._at("dflash_config.target_layer_ids")
        if not isinstance(ids, list) or not all(type(i) is int for i in ids):
            raise self._refuse("dflash_config.target_layer_ids", "a list of layer ids", ids)
        return tuple(ids)

    def config(self) -> DrafterConfig:
        """The drafter's configuration."""
        self._check_kind()
        eps = self._at("rms_norm_eps")
        if not isinstance(eps, float):
            raise self._refuse("rms_norm_eps", "a number", eps)
        return DrafterConfig(
            layers=self._whole("num_hidden_layers"),
            hidden_size=self._whole("hidden_size"),
            intermediate_size=self._whole("intermediate_size"),
            heads=self._whole("num_attention_heads"),
            kv_heads=self._whole("num_key_value_heads"),
            head_dim=self._whole("head_dim"),
            vocab_size=self._whole("vocab_size"),
            rms_norm_eps=eps,
            rope_theta=self._rope_theta(),
            block_size=self._block_size(),
            mask_token_id=self._whole("dflash_config.mask_token_id"),
            target_layer_ids=self._layer_ids(),
            target_layers=self._whole("num_target_layers"),
            max_position_embeddings=self._whole("max_position_embeddings"),
        )
