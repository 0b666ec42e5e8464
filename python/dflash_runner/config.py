"""The configuration of one worker: frozen, validated, made from the protobuf of `Configure`.

Python parses no files: the supervisor has read and resolved the user's configuration. What is
checked here is what a worker relies on; every message names the path, what was wanted and got.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields
from typing import Any

MAX_BUCKETS = 3
MIN_BUCKET = 8  # tokens: room for two documents and padding in warm-up
DEVICES = ("cpu", "cuda:0")
FLEX_BACKENDS = ("triton",)
MIN_FLEX_HEAD_DIM = 16  # elements: the least that the kernels' matrix products take
FP8 = "fp8"
PRECISIONS = ("compute_dtype", FP8)
FP8_MULTIPLE = 16  # elements: what the sizes of products in fp8 are multiples of
_SEED_LIMIT = 1 << 63  # torch takes a signed seed


class Role(enum.Enum):
    """What a worker does; closed."""

    TARGET = "target"
    DRAFTER = "drafter"


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetSettings:
    """The frozen model: its directory, dtype, and which layers are captured."""

    directory: str
    dtype: str
    layer_ids: tuple[int, ...]
    replay: bool = False  # rows are recorded on the GPU in warm-up, and replayed


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterSettings:
    """The shape of the drafter, in the words of the published configuration."""

    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    block_size: int
    mask_token_id: int
    target_layers: int
    init_from: str
    max_position_embeddings: int
    precision: str = "compute_dtype"  # of the products of its layers and head; see `products`


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSettings:
    """Shapes of rows and the optimiser's constants; the learning rate comes with each step."""

    buckets: tuple[int, ...]
    anchors: int
    gamma: float
    weight_constant: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float
    rows_per_step: int
    compute_dtype: str
    draws_per_row: int  # draws of anchors, each a forward and backward of the row


@dataclass(frozen=True, kw_only=True, slots=True)
class FlexSettings:
    """How the kernels of `attention: flex` are built: sizes in elements, 0 leaves one to torch.

    Source: torch.nn.attention.flex_attention.FlexKernelOptions.
    """

    backend: str = "triton"  # pinned: torch's own choice differs between shapes, and so between runs
    block_m: int = 0
    block_n: int = 0
    warps: int = 0
    stages: int = 0
    backward_block_m1: int = 0
    backward_block_n1: int = 0
    backward_block_m2: int = 0
    backward_block_n2: int = 0
    backward_warps: int = 0
    backward_stages: int = 0
    copy_keys: bool = False  # each query head has keys and values of its own
    replay: bool = False  # micro-steps are recorded on the GPU in warm-up, and replayed


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """All that a worker knows."""

    role: Role
    rank: int
    world_size: int
    generation: int
    device: str
    threads: int
    seed: int
    attention: str
    flex: FlexSettings
    target: TargetSettings
    drafter: DrafterSettings
    training: TrainingSettings
    communicator_directory: str
    train_data: str
    heldout_data: str
    prompts: str


def from_message(message: Any) -> Configuration:
    """The configuration that `message` says, checked.

    Args:
        message: a `worker.v1.Configuration` of protobuf.

    Returns:
        The configuration.

    Raises:
        ValueError: a value that no worker can run with; the message starts with its path.

    Source: proto/dflash_runner/worker/v1/worker.proto.
    """
    device = _choice("device", message.device, DEVICES)
    configuration = Configuration(
        role=_role(message.role),
        rank=message.rank,
        world_size=message.world_size,
        generation=message.generation,
        device=device,
        threads=_positive("threads", message.threads),
        seed=message.seed,
        attention=_choice("attention", message.attention, ("sdpa", "flex")),
        flex=_flex(message.flex),
        target=_target(message.target, message.drafter.target_layers),
        drafter=_drafter(message.drafter),
        training=_training(message.training, message.drafter.block_size),
        communicator_directory=message.communicator_directory,
        train_data=message.train_data,
        heldout_data=message.heldout_data,
        prompts=message.prompts,
    )
    _check_ranks(configuration)
    _check_attention(configuration)
    _check_precision(configuration)
    if configuration.target.replay and device == "cpu":
        raise ValueError("target.replay: want false on device cpu, where nothing is recorded, got true")
    return configuration


def _flex(message: Any) -> FlexSettings:
    """The kernels' part; sizes that a kernel can have."""
    sizes = {}
    for field in fields(FlexSettings):
        value = getattr(message, field.name)
        if field.name in ("backend", "copy_keys", "replay"):
            continue
        if value & (value - 1) and "stages" not in field.name:
            raise ValueError(f"flex.{field.name}: want a power of two, or 0 for torch's choice, got {value}")
        sizes[field.name] = value
    backend = _choice("flex.backend", message.backend or "triton", FLEX_BACKENDS)
    return FlexSettings(backend=backend, copy_keys=message.copy_keys, replay=message.replay, **sizes)


def _check_attention(configuration: Configuration) -> None:
    """Torch's own attention runs anywhere; the compiled one on a GPU, in the one dtype that its kernels are
    fast in. What heads a target has, its model says."""
    c = configuration
    if c.attention == "sdpa":
        return
    if c.role is Role.TARGET:
        if c.device == "cpu":
            raise ValueError(
                f"attention: want sdpa on device cpu, where nothing is compiled, got {c.attention!r}"
            )
        if c.target.dtype != "bfloat16":
            raise ValueError(f"target.dtype: want bfloat16 with attention flex, got {c.target.dtype!r}")
        return
    if c.device == "cpu":
        raise ValueError(
            f"attention: want sdpa on device cpu, where flex_attention has no backward, got {c.attention!r}"
        )
    if c.training.compute_dtype != "bfloat16":
        raise ValueError(
            f"training.compute_dtype: want bfloat16 with attention flex, got {c.training.compute_dtype!r}"
        )
    if c.drafter.head_dim < MIN_FLEX_HEAD_DIM:
        want = f"at least {MIN_FLEX_HEAD_DIM} with attention flex"
        raise ValueError(f"drafter.head_dim: want {want}, got {c.drafter.head_dim}")


def _check_precision(configuration: Configuration) -> None:
    """Products in fp8: every size a multiple of what a GPU's kernels take, on a CPU too, so that what runs
    there runs on a GPU. The vocabulary may be any: the head is filled up."""
    c, d, t = configuration, configuration.drafter, configuration.training
    if d.precision != FP8 or c.role is Role.TARGET:
        return
    if c.attention == "sdpa" and c.device != "cpu":
        raise ValueError(
            f"drafter.precision: want {PRECISIONS[0]} with attention sdpa on a GPU, as nothing is compiled, "
            f"got {FP8!r}"
        )
    sizes = {
        "drafter.hidden_size": ("", d.hidden_size),
        "drafter.intermediate_size": ("", d.intermediate_size),
        "drafter.heads": (" of heads x head_dim", d.heads * d.head_dim),
        "drafter.kv_heads": (" of kv_heads x head_dim", d.kv_heads * d.head_dim),
        "training.anchors": (" of anchors x drafter.block_size", t.anchors * d.block_size),
        **{f"training.buckets[{n}]": ("", bucket) for n, bucket in enumerate(t.buckets)},
    }
    for path, (what, size) in sizes.items():
        if size % FP8_MULTIPLE:
            want = f"a multiple of {FP8_MULTIPLE}{what} with drafter.precision fp8"
            raise ValueError(f"{path}: want {want}, got {size}")


def _target(message: Any, target_layers: int) -> TargetSettings:
    """The target's part, its layers within the model and rising."""
    layer_ids = tuple(message.layer_ids)
    if not layer_ids or list(layer_ids) != sorted(set(layer_ids)):
        raise ValueError(f"target.layer_ids: want distinct layers, rising, got {list(layer_ids)}")
    if layer_ids[-1] >= target_layers:
        raise ValueError(
            f"target.layer_ids: want layers below drafter.target_layers {target_layers}, got {layer_ids[-1]}"
        )
    return TargetSettings(
        directory=_named("target.directory", message.directory),
        dtype=_choice("target.dtype", message.dtype, ("float32", "bfloat16")),
        layer_ids=layer_ids,
        replay=message.replay,
    )


def _drafter(message: Any) -> DrafterSettings:
    """The drafter's part: sizes positive, heads grouped, mask token inside the vocabulary."""
    counts = (
        "layers hidden_size intermediate_size heads kv_heads head_dim vocab_size target_layers"
        " max_position_embeddings"
    ).split()
    sizes = {name: _positive(f"drafter.{name}", getattr(message, name)) for name in counts}
    if sizes["heads"] % sizes["kv_heads"]:
        raise ValueError(
            f"drafter.heads: want a multiple of kv_heads {sizes['kv_heads']}, got {sizes['heads']}"
        )
    if sizes["head_dim"] % 2:
        raise ValueError(f"drafter.head_dim: want an even number, got {sizes['head_dim']}")
    if message.block_size < 2:
        raise ValueError(f"drafter.block_size: want at least 2, got {message.block_size}")
    if message.mask_token_id >= sizes["vocab_size"]:
        raise ValueError(
            f"drafter.mask_token_id: want below vocab_size {sizes['vocab_size']}, got {message.mask_token_id}"
        )
    return DrafterSettings(
        **sizes,
        rms_norm_eps=_above_zero("drafter.rms_norm_eps", message.rms_norm_eps),
        rope_theta=_above_zero("drafter.rope_theta", message.rope_theta),
        block_size=message.block_size,
        mask_token_id=message.mask_token_id,
        init_from=message.init_from,
        precision=_choice("drafter.precision", message.precision or PRECISIONS[0], PRECISIONS),
    )


def _training(message: Any, block_size: int) -> TrainingSettings:
    """The training's part: few buckets, rising, each with room for a block."""
    buckets = tuple(message.buckets)
    if not 1 <= len(buckets) <= MAX_BUCKETS or list(buckets) != sorted(set(buckets)):
        raise ValueError(f"training.buckets: want 1 to {MAX_BUCKETS} lengths, rising, got {list(buckets)}")
    if buckets[0] < max(MIN_BUCKET, block_size):
        want = f"at least {MIN_BUCKET} and drafter.block_size {block_size}"
        raise ValueError(f"training.buckets: want {want}, got {buckets[0]}")
    if not 2 <= message.anchors < buckets[0]:  # two: one that counts and one of padding in warm-up
        want = f"2 to {buckets[0] - 1} in rows of {buckets[0]} tokens"
        raise ValueError(f"training.anchors: want {want}, got {message.anchors}")
    betas = {name: _share(f"training.{name}", getattr(message, name)) for name in ("beta1", "beta2")}
    above = ("gamma", "weight_constant", "epsilon", "clip_norm")
    if not 0 <= message.weight_decay < float("inf"):
        raise ValueError(f"training.weight_decay: want 0 or more, got {message.weight_decay}")
    return TrainingSettings(
        buckets=buckets,
        anchors=message.anchors,
        **{name: _above_zero(f"training.{name}", getattr(message, name)) for name in above},
        **betas,
        weight_decay=message.weight_decay,
        rows_per_step=_positive("training.rows_per_step", message.rows_per_step),
        compute_dtype=_choice("training.compute_dtype", message.compute_dtype, ("float32", "bfloat16")),
        draws_per_row=message.draws_per_row or 1,
    )


def _check_ranks(configuration: Configuration) -> None:
    """Ranks, seed and what only a sum over several drafters needs."""
    c = configuration
    if c.role is Role.TARGET:
        _named("train_data", c.train_data)
    if c.world_size < 1:
        raise ValueError(f"world_size: want at least 1, got {c.world_size}")
    if c.generation < 1:
        raise ValueError(f"generation: want at least 1, got {c.generation}")
    if c.seed >= _SEED_LIMIT:
        raise ValueError(f"seed: want below 2**63, got {c.seed}")
    if c.training.rows_per_step % c.world_size:
        want = f"a multiple of world_size {c.world_size}"
        raise ValueError(f"training.rows_per_step: want {want}, got {c.training.rows_per_step}")
    if c.role is Role.DRAFTER and c.rank >= c.world_size:
        raise ValueError(f"rank: want below world_size {c.world_size}, got {c.rank}")
    if c.role is Role.DRAFTER and c.world_size > 1 and not c.communicator_directory:
        raise ValueError(f"communicator_directory: want one for {c.world_size} drafters, got none")


def _role(number: int) -> Role:
    """The role of a protobuf enum's number."""
    roles = {1: Role.TARGET, 2: Role.DRAFTER}
    if number not in roles:
        raise ValueError(f"role: want 1 (target) or 2 (drafter), got {number}")
    return roles[number]


def _choice(path: str, value: str, choices: tuple[str, ...]) -> str:
    """`value`, one of `choices`."""
    if value not in choices:
        raise ValueError(f"{path}: want {' or '.join(choices)}, got {value!r}")
    return value


def _named(path: str, value: str) -> str:
    """`value`, not empty."""
    if not value:
        raise ValueError(f"{path}: want a path, got none")
    return value


def _positive(path: str, value: int) -> int:
    """`value`, at least 1."""
    if value < 1:
        raise ValueError(f"{path}: want at least 1, got {value}")
    return value


def _above_zero(path: str, value: float) -> float:
    """`value`, finite and above 0."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{path}: want a finite number above 0, got {value}")
    return value


def _share(path: str, value: float) -> float:
    """`value`, at least 0 and below 1."""
    if not 0 <= value < 1:
        raise ValueError(f"{path}: want at least 0 and below 1, got {value}")
    return value
