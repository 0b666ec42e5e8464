"""Compiled flex attention under a block mask; see `compiled` for what that promises.

Shapes: B rows, S context tokens, N anchors, K block size, Q = N*K noise tokens, X = S+Q keys, H query
heads, G key-value heads, E head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from dflash_runner.attention import Attend, AttentionCounter, Rule
from dflash_runner.compiled import Backend, Compiled
from dflash_runner.config import FlexSettings
from dflash_runner.staging import send_together
from dflash_runner.tiles import SIZE, lists

DTYPE = torch.bfloat16
"""Of queries, keys and values: float32 ones cost an order of magnitude in the backward."""

_OPTIONS = {
    "block_m": "fwd_BLOCK_M",
    "block_n": "fwd_BLOCK_N",
    "warps": "fwd_num_warps",
    "stages": "fwd_num_stages",
    "backward_block_m1": "bwd_BLOCK_M1",
    "backward_block_n1": "bwd_BLOCK_N1",
    "backward_block_m2": "bwd_BLOCK_M2",
    "backward_block_n2": "bwd_BLOCK_N2",
    "backward_warps": "bwd_num_warps",
    "backward_stages": "bwd_num_stages",
}
"""Our settings and torch's names for them (`FlexKernelOptions`)."""


def kernel_options(settings: FlexSettings) -> dict[str, Any]:
    """torch's options for what the configuration says; what is 0 there is left to torch."""
    chosen = {name: getattr(settings, ours) for ours, name in _OPTIONS.items()}
    return {"BACKEND": settings.backend.upper(), **{name: value for name, value in chosen.items() if value}}


def _attention(
    query_BHQE: Tensor,
    key_BGXE: Tensor,
    value_BGXE: Tensor,
    mask: BlockMask,
    options: dict[str, Any],
    copies: int,
) -> Tensor:
    """What is compiled: the output by tokens, [B,Q,H,E], which is how it lies in memory where the queries do;
    its gradient then comes as it is, where by heads it would be copied into their order.

    A program of the keys' backward goes through all queries that see its tile, of all heads that share it.
    The first tiles of a document are seen by nearly every block, so the last such programs end long after
    the rest; with copies there are as many more, and each is as much shorter."""
    if copies > 1:
        key_BGXE, value_BGXE = (
            x[:, :, None].expand(-1, -1, copies, -1, -1).flatten(1, 2) for x in (key_BGXE, value_BGXE)
        )
    out_BHQE = flex_attention(
        query_BHQE, key_BGXE, value_BGXE, block_mask=mask, enable_gqa=True, kernel_options=options
    )
    return out_BHQE.transpose(1, 2)


def block_mask(rule: Rule) -> BlockMask:
    """The mask that flex attention reads: of `rule.lists`, or of lists that are made and sent for it here."""
    device, (length, size) = rule.anchors_BN.device, (rule.documents_BS.shape[1], rule.block_size)
    by_rule = rule.lists if rule.lists is not None else send_together(lists(rule), device)
    *tiles, first_BN, end_BN = by_rule
    mask = BlockMask.from_kv_blocks(
        *tiles[:4],
        BLOCK_SIZE=SIZE,
        mask_mod=_visible(first_BN, end_BN, length=length, size=size),
        seq_lengths=(first_BN.shape[1] * size, length + first_BN.shape[1] * size),
        compute_q_blocks=False,
    )
    # the backward's lists, by keys: torch makes them from the forward's, element by element under vmap
    mask.q_num_blocks, mask.q_indices, mask.full_q_num_blocks, mask.full_q_indices = tiles[4:]
    return mask


def _visible(first_BN: Tensor, end_BN: Tensor, *, length: int, size: int) -> Callable[..., Tensor]:
    """The rule element by element, as the kernels evaluate it in partial tiles."""
    last = first_BN.shape[1] - 1

    def visible(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        block = (query // size).clamp(max=last)  # the last tile may reach beyond the queries
        own = length + block * size
        context = (key >= first_BN[row, block]) & (key < end_BN[row, block])
        return context | ((key >= own) & (key < own + size))

    return visible


class Flex:
    """The attention of `attention: flex`: compiled once, for all rows and layers."""

    def __init__(self, settings: FlexSettings, *, backend: Backend = "inductor") -> None:
        """Make the compiled function; nothing is compiled before it is called.

        Args:
            settings: kernel backend and options.
            backend: of the compiler; another than torch's own in tests.

        Raises:
            WorkerError: fatal, where the environment switches the compiler off.
        """
        self._compiled = Compiled(_attention, what="attention", backend=backend)
        self._options, self._copies = kernel_options(settings), settings.copy_keys
        self.counter = AttentionCounter()

    def over(self, rule: Rule) -> Attend:
        """The attention under `rule`: its block mask is put together here, once for all layers."""
        mask = block_mask(rule)

        def attend(query_BHQE: Tensor, key_BGXE: Tensor, value_BGXE: Tensor) -> Tensor:
            return self._call(query_BHQE, key_BGXE, value_BGXE, mask)

        return attend

    def check(self) -> None:
        """Refuse what `Compiled.check` refuses.

        Raises:
            WorkerError: fatal.
        """
        self._compiled.check()

    def _call(self, query_BHQE: Tensor, key_BGXE: Tensor, value_BGXE: Tensor, mask: BlockMask) -> Tensor:
        """The compiled function, for one dtype.

        Raises:
            WorkerError: fatal, as `Compiled` says, and for another dtype, now and ever after.
        """
        self._compiled.check()
        odd = [tensor.dtype for tensor in (query_BHQE, key_BGXE, value_BGXE) if tensor.dtype != DTYPE]
        if odd:
            self._compiled.refuse(f"want queries, keys and values in {DTYPE}, got {odd[0]}")
        self.counter.calls += 1
        copies = query_BHQE.shape[1] // key_BGXE.shape[1] if self._copies else 1
        out_BQHE = self._compiled(query_BHQE, key_BGXE, value_BGXE, mask, self._options, copies)
        return out_BQHE.transpose(1, 2)
