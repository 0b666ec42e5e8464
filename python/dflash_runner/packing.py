"""A row as a target runs it: samples side by side, each as if it were alone.

Shapes: S tokens of the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dflash_runner import devices
from dflash_runner.anchors import Piece
from dflash_runner.data import Dataset
from dflash_runner.errors import Kind, WorkerError


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """One row's tokens and which document each is of."""

    tokens_S: Tensor  # int32; 0 at padding
    loss_mask_S: Tensor  # uint8
    documents_S: Tensor  # int32; the piece's place in the row, -1 at padding

    def to(self, device: torch.device) -> Packed:
        """The row on a device, from the host; itself where it is there already."""
        if self.tokens_S.device == device:
            return self
        return Packed(
            tokens_S=devices.send(self.tokens_S, device),
            loss_mask_S=devices.send(self.loss_mask_S, device),
            documents_S=devices.send(self.documents_S, device),
        )

    def positions(self) -> Tensor:
        """Each token's place in its document, int64 [1,S]; a stretch of padding counts as one.

        It starts at 0 again with every document: that is what keeps documents apart, as a place that
        does not follow the one before it begins another sequence.

        Source: transformers, masking_utils.find_packed_sequence_indices.
        """
        documents_S = self.documents_S
        place_S = torch.arange(len(documents_S), device=documents_S.device)
        fresh_S = torch.ones_like(documents_S, dtype=torch.bool)
        fresh_S[1:] = documents_S[1:] != documents_S[:-1]
        return (place_S - torch.where(fresh_S, place_S, 0).cummax(dim=0).values)[None]


def pack(data: Dataset, *, pieces: Sequence[Piece], bucket: int) -> Packed:
    """The row of `pieces`.

    Args:
        data: holds the samples.
        pieces: in order of their start, without overlap; each a whole sample.
        bucket: S.

    Raises:
        WorkerError: not_found, where there is no such sample; invalid, where a piece is not the
            whole of its sample.

    Source: README, How it works (a row packs pieces, never cutting a sample).
    """
    tokens_S = torch.zeros(bucket, dtype=torch.int32)
    loss_mask_S = torch.zeros(bucket, dtype=torch.uint8)
    documents_S = torch.full((bucket,), -1, dtype=torch.int32)
    for document, piece in enumerate(pieces):
        if piece.sample >= len(data):
            raise WorkerError(
                Kind.NOT_FOUND, f"pack row: want a sample below {len(data)}, got {piece.sample}"
            )
        tokens, loss_mask = data.sample(piece.sample)
        if len(tokens) != piece.tokens:
            raise WorkerError(
                Kind.INVALID,
                f"pack row: sample {piece.sample}: want {len(tokens)} tokens, got {piece.tokens}",
                hint="the supervisor and this worker read different data",
            )
        span = slice(piece.start, piece.start + piece.tokens)
        tokens_S[span] = torch.from_numpy(np.array(tokens))
        loss_mask_S[span] = torch.from_numpy(np.array(loss_mask))
        documents_S[span] = document
    return Packed(tokens_S=tokens_S, loss_mask_S=loss_mask_S, documents_S=documents_S)
