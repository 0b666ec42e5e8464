"""What warm-up says while it runs and when it is done; needs no torch.

Source: proto/dflash_runner/worker/v1/worker.proto, whose fields these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a phase of warm-up is."""

    phase: str  # import, build, first_pass, second_pass, oracle
    bucket: int = 0  # tokens; 0 where the phase has none
    done: int
    total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """A worker's proof that its own kernels work; every field was measured or counted."""

    fingerprint: str
    attention: str
    buckets: tuple[int, ...]
    passes: int
    graphs: int
    cache: str
    cache_hits: int
    cache_misses: int
    seconds: Mapping[str, float]
    kernels: tuple[str, ...]
    attention_calls: int
    dense_calls: int
    first_pass_compiles: int
    second_pass_compiles: int
    peak_bytes: int
    step_ms: float
    digest_before: bytes
    digest_after: bytes
    dense_difference: float
    dense_tolerance: float
    device: str
    torch: str
    environment: Mapping[str, str]
    gradients: bool
    padded_anchors: bool
    precision: str  # compute_dtype or fp8
    linear_products: int  # in fp8
    head_products: int  # in fp8
    product_kernels: tuple[str, ...]
