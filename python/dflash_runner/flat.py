"""Where a drafter's tensors lie in flat buffers: in the order in which the backward completes them.

So a sum over the ranks can begin with the front of the buffer while the rest is still being computed.

Shapes: P all elements, each tensor padded to 64 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

BUCKET_BYTES = 128 << 20
"""A bucket of float32 gradients is closed at this size, or before a tensor that would double it: large
enough for the full rate of a link, small enough that little is left to sum when the backward ends. Only a
tensor that is larger by itself makes a larger bucket."""

_ALIGNMENT_BYTES = 64  # as torch allocates: kernels see every tensor as they would alone
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_OWN = ("mlp.down_proj", "mlp.up_proj", "mlp.gate_proj", "self_attn.o_proj", "self_attn.q_proj")
_SHARED = ("self_attn.v_proj", "self_attn.k_proj")  # by the context and the noise
_IN_LAYER = {f"{name}.weight": at for at, name in enumerate(_OWN + _SHARED)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a tensor lies in the flat buffers."""

    offset: int
    shape: torch.Size

    def of(self, flat_P: Tensor) -> Tensor:
        """The tensor in one of the buffers: a view."""
        return flat_P[self.offset : self.offset + self.shape.numel()].view(self.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Neighbours that are summed together."""

    names: tuple[str, ...]
    low: int
    high: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Every tensor's place. Those that decay (matrices) come first, and only they are in buckets: the rest
    is small."""

    places: Mapping[str, Place]
    buckets: tuple[Bucket, ...]
    decayed: int  # elements before the first tensor that does not decay
    total: int
    alignment: int  # elements


def completion(name: str) -> tuple[int, int, int, str]:
    """The key that sorts matrices by when the backward completes their gradients.

    The layers come last to first. The keys and values of the context were made before any layer, so
    autograd comes to them after all layers, last to first again: only then are the projections of keys and
    values complete. What made the context comes at the very end. Another order costs time and no bits.

    Source: torch's engine takes of what is ready the node that was made last; held by a test.
    """
    found = _LAYER.fullmatch(name)
    if found is None:
        return 2, 0, 0, name
    place = _IN_LAYER.get(found[2], len(_IN_LAYER))
    return int(place >= len(_OWN)), -int(found[1]), place, name


def lay_out(parameters: Mapping[str, Tensor], *, bucket_bytes: int = BUCKET_BYTES) -> Layout:
    """The layout of a drafter's parameters.

    Args:
        parameters: by name, all of one dtype, which may be narrower than the flat buffers' float32.
        bucket_bytes: as `BUCKET_BYTES` says, of the float32 gradient.

    Raises:
        ValueError: parameters of several dtypes.
    """
    dtypes = {parameter.dtype for parameter in parameters.values()}
    if len(dtypes) != 1:
        raise ValueError(f"lay out parameters: want one dtype, got {sorted(map(str, dtypes))}")
    alignment = _ALIGNMENT_BYTES // dtypes.pop().itemsize
    places, decayed, offset = {}, 0, 0
    for name, parameter in sorted(parameters.items(), key=lambda i: (i[1].ndim < 2, completion(i[0]))):
        places[name] = Place(offset=offset, shape=parameter.shape)
        offset += -(-parameter.numel() // alignment) * alignment
        decayed = offset if parameter.ndim >= 2 else decayed
    starts = [place.offset for place in places.values()] + [offset]
    matrices = [(name, *starts[n : n + 2]) for n, name in enumerate(places) if starts[n] < decayed]
    buckets = _cut(matrices, bucket_bytes // torch.float32.itemsize)
    return Layout(places=places, buckets=buckets, decayed=decayed, total=offset, alignment=alignment)


def _cut(matrices: list[tuple[str, int, int]], limit: int) -> tuple[Bucket, ...]:
    """Neighbours put together to `limit` elements or a little more."""
    buckets: list[Bucket] = []
    for name, low, high in matrices:
        last = buckets[-1] if buckets else None
        if last is None or last.high - last.low >= limit or high - last.low > 2 * limit:
            buckets.append(Bucket(names=(name,), low=low, high=high))
        else:
            buckets[-1] = Bucket(names=(*last.names, name), low=last.low, high=high)
    return tuple(buckets)
