"""The sizes of a drafter and its rows, without importing torch. They come from cmd/internal/bench/shape.go.

Shapes: S tokens of the row, N anchors of a row, K tokens of a block, V vocabulary, D hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TARGET_LAYERS = 36
_SPREAD = 32  # layers between the first captured one and the last


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes of a drafter and its rows."""

    tokens: int  # S
    anchors: int  # N
    block: int  # K
    vocabulary: int  # V
    hidden: int  # D
    intermediate: int
    layers: int
    captured: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str  # float32 or bfloat16; of compute
    precision: str = ""  # of matrix products: fp8, or none: dtype

    @classmethod
    def told(cls, asked: dict[str, Any]) -> Shape:
        """The shape of a question's JSON, in which S and N have their letters."""
        names = {"tokens": "S", "anchors": "N"}
        own = [name for name in cls.__dataclass_fields__ if name != "precision"]
        told = {name: asked[names.get(name, name)] for name in own}
        return cls(**told, precision=asked.get("precision", ""))

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Captured layers, spread over the target as the reference's: 1, 9, 17, 25, 33."""
        return tuple(1 + i * _SPREAD // max(1, self.captured - 1) for i in range(self.captured))

    @property
    def mask_token_id(self) -> int:
        """The token that stands for every unknown one of a block: the vocabulary's last."""
        return self.vocabulary - 1
