"""Where blocks start: valid places, and which of them a draw takes.

Shapes: S tokens of a row or a sample, N anchor places of a row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dflash_runner.errors import Kind, WorkerError


class Piece(Protocol):
    """One sample's place in a row, as runner.Piece and proto/lane.md give it."""

    @property
    def sample(self) -> int:
        """Index of the sample in the data index."""

    @property
    def draw(self) -> int:
        """Which draw of anchors of this sample in this epoch."""

    @property
    def start(self) -> int:
        """First token's place in the row."""

    @property
    def tokens(self) -> int:
        """Length in tokens."""

    @property
    def anchors(self) -> int:
        """How many of the row's anchor places are this piece's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchors:
    """A row's anchors: sorted, `places` of them, padding last."""

    anchors_N: Tensor  # int64, place in the row
    keep_N: Tensor  # bool; false: a padding place, whose anchor is in range and means nothing


def valid_places(loss_mask_S: np.ndarray) -> np.ndarray:
    """The tokens of one document that may be an anchor, rising: those supervised whose next is, too.

    So every anchor has at least one label. The last token never is one.

    Args:
        loss_mask_S: one document's loss mask, any dtype, not zero means supervised.

    Source: SpecForge since #731.
    """
    supervised_S = loss_mask_S != 0
    return np.flatnonzero(supervised_S[:-1] & supervised_S[1:])


def draw(loss_mask_S: Tensor, *, pieces: Sequence[Piece], seed: int, epoch: int, places: int) -> Anchors:
    """A row's anchors: for each piece exactly `piece.anchors` distinct valid places.

    A piece's choice follows from (seed, epoch, sample, draw) and its own loss mask, and from nothing
    else: not from its place, its row, its neighbours or the rank.

    Args:
        loss_mask_S: the row's loss mask, on the CPU.
        pieces: of the row, in order of their start.
        seed: the run's.
        epoch: from 0.
        places: N, the same for every row.

    Raises:
        WorkerError: invalid, where a piece has fewer valid places than anchors, leaves the row, or the
            pieces have more anchors than the row has places.
    """
    mask_S, chosen = loss_mask_S.numpy(), []  # numpy's small calls cost a tenth of torch's
    for piece in pieces:
        if piece.start + piece.tokens > len(mask_S):
            raise _refused(piece, f"want an end of at most {len(mask_S)}, got {piece.start + piece.tokens}")
        local = valid_places(mask_S[piece.start : piece.start + piece.tokens])
        if len(local) < piece.anchors:
            raise _refused(piece, f"want {piece.anchors} valid places, got {len(local)}")
        key = f"dflash-runner anchors {seed} {epoch} {piece.sample} {piece.draw}"
        chosen.append(_choose(local, count=piece.anchors, key=key) + piece.start)
    taken = torch.from_numpy(np.concatenate(chosen)) if chosen else torch.zeros(0, dtype=torch.int64)
    if len(taken) > places:
        raise WorkerError(
            Kind.INVALID, f"draw anchors: pieces of the row: want at most {places} anchors, got {len(taken)}"
        )
    padding = int(taken[-1]) if len(taken) else 0
    anchors_N = torch.full((places,), padding, dtype=torch.int64)
    anchors_N[: len(taken)] = taken
    return Anchors(anchors_N=anchors_N, keep_N=torch.arange(places) < len(taken))


def _choose(local: np.ndarray, *, count: int, key: str) -> np.ndarray:
    """`count` of `local`, sorted: those with the smallest random 64-bit words.

    Philox words, not numpy's sampling methods: the words of a bit generator are promised to stay the
    same between releases, the methods' results are not (NEP 19).
    """
    digest = hashlib.sha256(key.encode()).digest()
    words = np.random.Philox(key=int.from_bytes(digest[:16], "little")).random_raw(len(local))
    order = np.argsort(words, kind="stable")[:count]
    return local[np.sort(order)]


def _refused(piece: Piece, why: str) -> WorkerError:
    return WorkerError(
        Kind.INVALID,
        f"draw anchors: sample {piece.sample} at {piece.start} with {piece.tokens} tokens: {why}",
    )
