"""A row's preparation: all of a micro-step that depends on no weight, made while another row is computed.

Anchors, noise blocks, labels, weights and the lists of the mask's tiles follow from the row's small tensors.
They are made on the host, where a GPU would run some 150 kernels for them, and sent in one transfer; the
rotations are a few kernels more, on a stream of their own. Nothing compiled runs here, so any thread may.

Shapes: S tokens of the row, C captured width, N anchor places.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_runner import anchors, frames, loss
from dflash_runner.anchors import Piece
from dflash_runner.attention import Rule
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.model import DrafterConfig
from dflash_runner.staging import Copies, Staging, cut, pack
from dflash_runner.tiles import lists

_SMALL = ("tokens", "loss_mask", "documents")
_OF_BLOCKS = ("noise_BQ", "positions_BS", "noise_positions_BQ", "labels_BNJ", "valid_BNJ", "weights_BNJ")
_OF_RULE = ("anchors_BN", "keep_BN", "documents_BS")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A row that a micro-step can begin with at once; it may be used again, as nothing is written to it."""

    hidden_SC: Tensor  # the row buffer's own, in the target's dtype
    blocks: loss.Blocks  # with rotations and, where attention is compiled, the lists of its tiles
    anchors: int  # places that are no padding
    ready: torch.cuda.Event | None  # of the stream that the blocks are made on; none on a CPU
    packed: Tensor | None = None  # the bytes of all blocks but rotations, where they came in one transfer

    def wait(self) -> None:
        """Let the current stream go on when all is there, and keep the memory until it has read it."""
        if self.ready is None:
            return
        stream = torch.cuda.current_stream(self.blocks.noise_BQ.device)
        stream.wait_event(self.ready)
        turned = [half for r in self.blocks.rotaries or () for half in (r.cos_B1SE, r.sin_B1SE)]
        together = self.blocks.noise_BQ if self.packed is None else self.packed
        for tensor in (together, *turned):
            tensor.record_stream(stream)

    def copy(self) -> Prepared:
        """Memory of its own for rows of this layout, holding this row; rotations are left out, as they follow
        from the positions.

        Raises:
            AssertionError: the blocks did not come in one transfer.
        """
        if self.packed is None:
            raise AssertionError("copy a prepared row: want its blocks in one stretch of memory")
        packed, blocks = self.packed.clone(), self.blocks
        own = _cut_blocks(packed, like=blocks)
        return Prepared(
            hidden_SC=self.hidden_SC.clone(), blocks=own, anchors=self.anchors, ready=None, packed=packed
        )

    def overwrite(self, row: Prepared) -> None:
        """Take another row's values over, where this one's memory is; queued on the current stream.

        Raises:
            WorkerError: fatal, for a row of another layout.
        """
        mine, other = self._layout(), row._layout()
        if self.packed is None or row.packed is None or mine != other:
            raise WorkerError(
                Kind.FATAL,
                f"replay micro-step: want a row laid out as the recorded one, {mine}, got {other}",
                hint="a shape or dtype reached this worker that warm-up did not run",
            )
        self.hidden_SC.copy_(row.hidden_SC)
        self.packed.copy_(row.packed)

    def _layout(self) -> list[tuple[torch.dtype, tuple[int, ...]]]:
        """Dtype and shape of everything but rotations."""
        return [(t.dtype, tuple(t.shape)) for t in (self.hidden_SC, *_tensors(self.blocks))]


class Preparation:
    """Prepares rows, one at a time: of the thread that pulls, and in warm-up of the main one."""

    def __init__(
        self,
        *,
        config: DrafterConfig,
        seed: int,
        places: int,
        draws: int,
        gamma: float,
        longest: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Pin what small tensors pass through on their way to the host.

        Args:
            config: of the drafter.
            seed: of the anchors.
            places: N.
            draws: of a row.
            gamma: decay of the weights.
            longest: tokens of the longest row.
            dtype: of compute.
            device: of compute.
        """
        self._config, self._dtype, self._device = config, dtype, device
        self._seed, self._places, self._draws, self._gamma = seed, places, draws, gamma
        self._copies = Copies(device)
        small = len(_SMALL) * (4 * longest + 64)
        self._staging = None if device.type == "cpu" else Staging(small, device=device)

    @torch.no_grad()
    def prepare(
        self,
        tensors: Mapping[str, Tensor],
        *,
        epoch: int,
        pieces: Sequence[Piece],
        draw: int,
        tiles: bool,
    ) -> Prepared:
        """A complete row's preparation; on a device its end is queued and not waited for.

        Args:
            tensors: `hidden`, `tokens`, `loss_mask`, `documents`; the last three on the host or the device.
            epoch: with the pieces, decides the anchors.
            pieces: of the row, in order.
            draw: which of the row's, from 0.
            tiles: whether the attention reads lists of tiles.

        Raises:
            WorkerError: invalid, where pieces and loss mask do not fit.
        """
        small = self._on_host(tensors)
        chosen = anchors.draw(
            small["loss_mask"],
            pieces=[_drawn(piece, draw=draw, of=self._draws) for piece in pieces],
            seed=self._seed,
            epoch=epoch,
            places=self._places,
        )
        rows = loss.Rows(
            hidden_BSC=tensors["hidden"][None],
            tokens_BS=small["tokens"][None].long(),
            loss_mask_BS=small["loss_mask"][None].bool(),
            documents_BS=small["documents"][None].long(),
            anchors_BN=chosen.anchors_N[None],
            keep_BN=chosen.keep_N[None],
        )
        config = self._config
        blocks = loss.blocks(
            rows, block_size=config.block_size, mask_token_id=config.mask_token_id, gamma=self._gamma
        )
        if tiles:
            blocks = dataclasses.replace(
                blocks, rule=dataclasses.replace(blocks.rule, lists=lists(blocks.rule))
            )
        with self._copies.here():
            blocks, packed = self._there(blocks)
            blocks = dataclasses.replace(
                blocks, rotaries=loss.rotaries(blocks, config=config, dtype=self._dtype)
            )
            ready = None if self._copies.stream is None else self._copies.stream.record_event()
        return Prepared(
            hidden_SC=tensors["hidden"],
            blocks=blocks,
            anchors=int(chosen.keep_N.sum()),
            ready=ready,
            packed=packed,
        )

    def _on_host(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The small tensors on the host; those of a complete row on the device are fetched."""
        small = {name: tensors[name] for name in _SMALL}
        away = {name: tensor for name, tensor in small.items() if not tensor.is_cpu}
        if self._staging is None or not away:
            return small
        with self._staging.like(list(away.values())) as hosts:
            self._staging.fetch(list(away.values()), into=hosts, after_caller=False)
            return small | {name: host.clone() for name, host in zip(away, hosts, strict=True)}

    def _there(self, blocks: loss.Blocks) -> tuple[loss.Blocks, Tensor | None]:
        """The blocks on the device, and the bytes that they came in."""
        return (blocks, None) if self._device.type == "cpu" else sent(blocks, self._device)


def _drawn(piece: Piece, *, draw: int, of: int) -> Piece:
    """A piece as one of the draws of its row: no two of an epoch share a number."""
    own = piece.draw * of + draw
    return frames.Piece(piece.sample, own, piece.start, piece.tokens, piece.anchors)


def sent(blocks: loss.Blocks, device: torch.device) -> tuple[loss.Blocks, Tensor]:
    """Blocks of the host on a device, in one transfer that nobody waits for, and the bytes of them."""
    packed = pack(_tensors(blocks), pinned=device.type == "cuda").to(device, non_blocking=True)
    return _cut_blocks(packed, like=blocks), packed


def _tensors(blocks: loss.Blocks) -> list[Tensor]:
    """Everything but rotations, in the order in which it is sent."""
    rule = blocks.rule
    own = [getattr(blocks, name) for name in _OF_BLOCKS]
    return [*own, *(getattr(rule, name) for name in _OF_RULE), *(rule.lists or ())]


def _cut_blocks(packed: Tensor, *, like: loss.Blocks) -> loss.Blocks:
    """Blocks in a stretch of bytes, laid out as others; without rotations."""
    there = iter(cut(packed, _tensors(like)))
    of_blocks = {name: next(there) for name in _OF_BLOCKS}
    of_rule = {name: next(there) for name in _OF_RULE}
    tiles = None if like.rule.lists is None else tuple(there)
    return loss.Blocks(**of_blocks, rule=Rule(**of_rule, block_size=like.rule.block_size, lists=tiles))
