"""The row buffers of a drafter: two fixed places on its device that pulls fill and micro-steps read.

The supervisor reckons what each drafter holds, so which place a pull takes is fixed by proto/lane.md:
an empty one; else that of a row trained since it was pulled, the lower row first; else that of the
higher row. Rows stay after an abort, for whoever names them again.

Shapes: S tokens of the row, C = L*D captured width.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dflash_runner.errors import Kind, WorkerError
from dflash_runner.frames import Piece
from dflash_runner.lane import LaneError
from dflash_runner.preparation import Prepared

PLACES = 2


class _State(enum.Enum):
    EMPTY = "empty"
    FILLING = "filling"
    FULL = "full"
    TRAINING = "in training"


@dataclass(kw_only=True, slots=True)
class Held:
    """One place and the row in it; the tensors are views of the place's fixed memory."""

    row: int = 0
    epoch: int = 0
    pieces: tuple[Piece, ...] = ()
    tensors: dict[str, Tensor] = field(default_factory=dict)
    prepared: tuple[Prepared, ...] = ()  # a draw each, while it is complete
    state: _State = _State.EMPTY
    trained: bool = False  # since it was pulled, in whatever attempt
    open: bool = False  # trained in the step that is open


class RowBuffers:
    """The places; every method may be called from any thread."""

    def __init__(
        self, *, bucket: int, width: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        """Allocate the memory of all places, for good.

        Args:
            bucket: the longest row, in tokens.
            width: C, elements of hidden states per token.
            dtype: of the hidden states.
            device: of all places.
        """
        self._width = width
        self._bucket = bucket
        self._memory = [
            {
                "hidden": torch.zeros(bucket * width, dtype=dtype, device=device),
                "tokens": torch.zeros(bucket, dtype=torch.int32, device=device),
                "loss_mask": torch.zeros(bucket, dtype=torch.uint8, device=device),
                "documents": torch.zeros(bucket, dtype=torch.int32, device=device),
            }
            for _ in range(PLACES)
        ]
        self._mu = threading.Lock()  # guards below
        self._places = [Held() for _ in range(PLACES)]

    def begin(self, row: int, *, epoch: int, bucket: int, pieces: Sequence[Piece]) -> Held:
        """A place for `row`, to be filled; its `tensors` are where to copy to.

        Args:
            row: its number.
            epoch: for its anchors.
            bucket: its length in tokens.
            pieces: of the row, in order.

        Raises:
            LaneError: the row is held already, or every place is being filled or read.
            WorkerError: invalid, where the row is longer than any bucket.

        Source: proto/lane.md `pull`.
        """
        if bucket > self._bucket:
            raise WorkerError(
                Kind.INVALID, f"pull row {row}: want at most {self._bucket} tokens, got {bucket}"
            )
        with self._mu:
            index = self._choose(row)
            held = Held(
                row=row,
                epoch=epoch,
                pieces=tuple(pieces),
                tensors=self._views(index, bucket),
                state=_State.FILLING,
            )
            self._places[index] = held
            return held

    def filled(self, held: Held, *, prepared: Sequence[Prepared]) -> None:
        """The row is complete, and prepared as it lies in its place, draw by draw."""
        with self._mu:
            held.prepared = tuple(prepared)
            held.state = _State.FULL

    def failed(self, held: Held) -> None:
        """The copy failed: the place is empty."""
        with self._mu:
            held.state = _State.EMPTY

    def take(self, row: int) -> Held:
        """The complete row, for a micro-step, until `release`.

        Raises:
            WorkerError: invalid, where it is in no place or not complete.
        """
        with self._mu:
            for held in self._places:
                if held.row == row and held.state is _State.FULL:
                    held.state = _State.TRAINING
                    return held
            raise WorkerError(Kind.INVALID, f"train row {row}: want it in a row buffer, got {self._have()}")

    def release(self, held: Held) -> None:
        """Nothing reads the row any more."""
        with self._mu:
            held.state = _State.FULL

    def mark(self, held: Held) -> None:
        """The row's micro-step is being answered with `trained`, which is what the supervisor reckons by."""
        with self._mu:
            held.trained = held.open = True

    def committed(self) -> None:
        """The step is over: its rows' places are empty."""
        with self._mu:
            for held in self._places:
                if held.open:
                    held.state, held.open, held.prepared = _State.EMPTY, False, ()

    def dropped(self) -> None:
        """The step was aborted: its rows stay, and keep their marks."""
        with self._mu:
            for held in self._places:
                held.open = False

    def _choose(self, row: int) -> int:
        """The index of the place that a pull of `row` gets; the lock is held."""
        if any(held.row == row and held.state is not _State.EMPTY for held in self._places):
            raise LaneError(f"pull row {row}: it is held already, got {self._have()}")

        def worth(index: int) -> tuple[int, int]:
            held = self._places[index]
            if held.state is _State.EMPTY:
                return 0, 0
            return (1, held.row) if held.trained else (2, -held.row)

        idle = [i for i, held in enumerate(self._places) if held.state in (_State.EMPTY, _State.FULL)]
        if not idle:
            raise LaneError(f"pull row {row}: want a row buffer that is not in use, got {self._have()}")
        return min(idle, key=worth)

    def _have(self) -> list[tuple[int, str]]:
        """What the places hold, for messages; the lock is held."""
        return [(held.row, held.state.value) for held in self._places]

    def _views(self, index: int, bucket: int) -> dict[str, Tensor]:
        """The place's memory in the shapes of a row of `bucket` tokens."""
        memory = self._memory[index]
        views = {name: memory[name][:bucket] for name in ("tokens", "loss_mask", "documents")}
        hidden = memory["hidden"][: bucket * self._width].view(bucket, self._width)
        return {"hidden": hidden, **views}
