"""Other ways to make a target's row: each measured beside the worker's own, which on a GPU is `flex+norms`
with tiles from the host.

A way is one attention, one fusion, or both with a plus sign, as `varlen+norms`. Attention: `sdpa` is the
model's own (a mask, torch's choice of kernel); `efficient`, `cudnn` and `math` are one kernel of torch under
the same mask; `causal` takes the row for one document, which is wrong of any other, and shows what attention
without a mask would take; `varlen` is flash attention by documents' ends; `flex` is compiled, with a mask of
tiles.
Fusion: `norms` compiles each norm and the rotation, `blocks` each block as a whole.

Shapes: S tokens of the row, H query heads, G key-value heads, E head size.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from dflash_runner.frozen import FrozenTarget
from dflash_runner.masks import kinds_of, masks
from dflash_runner.packing import Packed
from dflash_runner.replay import CudaRecorder
from dflash_runner.warmup_target import difference
from torch import Tensor

Attention = Callable[..., tuple[Tensor, None]]
"""As transformers calls it: (module, query_BHSE, key_BGSE, value_BGSE, mask, ...) to (output_BSHE, None)."""

KERNELS = {"efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION", "math": "MATH"}
ATTENTIONS = ("sdpa", *KERNELS, "causal", "varlen", "flex")
FUSIONS = ("norms", "blocks")


def parts_of(way: str) -> tuple[str, str]:
    """The attention and the fusion of a way; an empty fusion is none.

    Raises:
        ValueError: for a way of another name.
    """
    names = way.split("+")
    attention = [name for name in names if name in ATTENTIONS]
    fusion = [name for name in names if name in FUSIONS]
    if len(attention) + len(fusion) != len(names) or max(len(attention), len(fusion)) > 1:
        want = f"one of {', '.join(ATTENTIONS)}, or one of {', '.join(FUSIONS)}, or both with a plus sign"
        raise ValueError(f"--try: want {want}, got {way!r}")
    return (attention or ["sdpa"])[0], (fusion or [""])[0]


def tried(
    way: str,
    target: FrozenTarget,
    *,
    row: Packed,
    want_SC: Tensor,
    timed: Callable[..., dict[str, float]],
    rounds: int,
) -> dict[str, Any]:
    """How long a way takes, as it comes and recorded, and how far its hidden states are from the worker's;
    or why there is no such figure.

    Args:
        way: see the module.
        target: put back as it was.
        row: on the host.
        want_SC: by the worker's own way.
        timed: as step.py has it, `device` and `rounds` by name.
        rounds: to measure.
    """
    found: dict[str, Any] = {"way": way}
    torch.compiler.set_stance("default")  # a warm-up refuses every later compile
    try:
        attention, fusion = parts_of(way)
        row = row.to(target.device)
        with _fused(target, fusion), _attending(target, attention, row) as mask:
            work = _maker(target, row, mask=mask)
            start = time.perf_counter()
            got_SC = work()
            found["difference"] = difference(got_SC, want_SC, layers=len(target.layer_ids))
            found["first_s"] = time.perf_counter() - start
            found["plain"] = timed(work, device=target.device, rounds=rounds)
            if target.device.type == "cuda":
                replay, _ = CudaRecorder(target.device).record(work)
                found["replayed"] = timed(replay, device=target.device, rounds=rounds)
    except Exception as error:  # noqa: BLE001 whatever keeps a way from a figure is the answer
        found["failed"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"[:200]
    print(found, file=sys.stderr, flush=True)  # noqa: T201
    return found


def _maker(target: FrozenTarget, row: Packed, *, mask: Any) -> Callable[[], Tensor]:
    """A row's forward; a mask is made anew in each, as a worker makes it."""
    positions_1S = row.positions()
    kinds, window = kinds_of(target.text), target.window

    def work() -> Tensor:
        own = masks(positions_1S, kinds=kinds, window=window) if mask == "own" else None
        return target.run(row.tokens_S, positions_1S=positions_1S, mask=own)

    return work


@contextlib.contextmanager
def _attending(target: FrozenTarget, attention: str, row: Packed) -> Iterator[str | None]:
    """The model with another attention; gives whether it is handed masks."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from transformers import AttentionInterface

    if attention == "sdpa":
        yield "own"
        return
    if attention in KERNELS:
        with sdpa_kernel(getattr(SDPBackend, KERNELS[attention])):
            yield "own"
        return
    made = {"causal": _causal, "varlen": _varlen, "flex": _flex}[attention](row)
    before, name = target.text._attn_implementation, f"bench_{attention}"  # noqa: SLF001
    AttentionInterface.register(name, made)  # and no mask under its name, so that the model makes none
    target.text._attn_implementation = name  # noqa: SLF001
    try:
        yield None
    finally:
        target.text._attn_implementation = before  # noqa: SLF001


def _causal(_row: Packed) -> Attention:
    """The row as one document."""

    def attend(_: Any, query: Tensor, key: Tensor, value: Tensor, *_mask: Any, **given: Any) -> Any:
        out_BHSE = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=given.get("scaling"), enable_gqa=True
        )
        return out_BHSE.transpose(1, 2), None

    return attend


def _varlen(row: Packed) -> Attention:
    """By where documents end: as many places as the row has tokens would do for any row."""
    from torch.nn.attention.varlen import varlen_attn

    begins_S = (row.positions()[0] == 0).nonzero()[:, 0]
    length = len(row.tokens_S)
    ends = torch.cat([begins_S, begins_S.new_tensor([length])]).to(torch.int32)

    def attend(_: Any, query: Tensor, key: Tensor, value: Tensor, *_mask: Any, **given: Any) -> Any:
        flat = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
        out_SHE = varlen_attn(
            *flat, ends, ends, length, length, scale=given.get("scaling"), window_size=(-1, 0)
        )
        return out_SHE[None], None

    return attend


def _flex(row: Packed) -> Attention:
    """Compiled, with the tiles between documents left out."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    sequence_S = (row.positions()[0] == 0).cumsum(dim=0)
    length = len(row.tokens_S)

    def visible(_row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (sequence_S[key] == sequence_S[query])

    mask = create_block_mask(visible, None, None, length, length, device=row.tokens_S.device)
    compiled = torch.compile(flex_attention, fullgraph=True, dynamic=False)

    def attend(_: Any, query: Tensor, key: Tensor, value: Tensor, *_mask: Any, **given: Any) -> Any:
        out_BHSE = compiled(query, key, value, block_mask=mask, scale=given.get("scaling"), enable_gqa=True)
        return out_BHSE.transpose(1, 2), None

    return attend


@contextlib.contextmanager
def _fused(target: FrozenTarget, fusion: str) -> Iterator[None]:
    """The model with compiled parts, and afterwards as it was."""
    if fusion == "blocks":
        with contextlib.ExitStack() as undo:
            for layer in target.decoder.layers:
                _put(undo, layer, "forward", torch.compile(layer.forward, fullgraph=True, dynamic=False))
            yield
        return
    if fusion != "norms":
        yield
        return
    norms = [module for module in target.decoder.modules() if type(module).__name__.endswith("RMSNorm")]
    family = sys.modules[type(target.decoder).__module__]
    with contextlib.ExitStack() as undo:
        for norm in norms:
            _put(undo, norm, "forward", torch.compile(norm.forward, fullgraph=True, dynamic=False))
        turn = torch.compile(family.apply_rotary_pos_emb, fullgraph=True, dynamic=False)
        _put(undo, family, "apply_rotary_pos_emb", turn)
        yield


def _put(undo: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set an attribute until `undo` closes."""
    own = name in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, value)
    undo.callback(lambda: setattr(owner, name, before) if own else delattr(owner, name))
