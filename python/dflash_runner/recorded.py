"""A target's rows, recorded once a bucket on the GPU and replayed: the host launches one thing for a forward.

What is recorded is `FrozenTarget.recordable`: the same kernels on the same memory, so the same bits. A row's
tokens, documents and positions are copied to where the recording reads them, in one transfer, and its hidden
states are left where the recording leaves them until the next row of the bucket.

Shapes: S tokens of the row, C captured width.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_runner.errors import Kind, WorkerError
from dflash_runner.frozen import FrozenTarget
from dflash_runner.packing import Packed
from dflash_runner.replay import Recorder
from dflash_runner.staging import cut, pack
from dflash_runner.waits import NoWaits
from dflash_runner.watch import AttentionCalls

_OFF = "target.replay: false makes rows as they come"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Recording:
    """A bucket's."""

    bytes: Tensor  # what the recorded kernels read: tokens, documents and positions, one behind the other
    replay: Callable[[], None]
    hidden_SC: Tensor  # what they leave
    attention_calls: int  # of one replay


class RecordedRows:
    """Makes a target's rows: of recorded buckets by replay, others as they come, all by `recordable`.

    Used on the thread that made it alone.
    """

    def __init__(self, target: FrozenTarget, *, recorder: Recorder) -> None:
        """Nothing is recorded yet.

        Args:
            target: frozen: what is recorded reads its weights where they are.
            recorder: of the target's device.
        """
        self._target, self._recorder = target, recorder
        self._recordings: dict[int, _Recording] = {}
        self._thread = threading.get_ident()
        self.replayed_calls = 0  # of attention, by all replays

    @property
    def held_bytes(self) -> int:
        """Of the device, by the recordings' activations and hidden states."""
        return self._recorder.held_bytes

    def hidden_states(self, row: Packed) -> Tensor:
        """hidden_SC of a packed row, as `FrozenTarget.hidden_states`; queued, not waited for.

        Of a recorded bucket it is good until the next row of the bucket, which writes it.

        Raises:
            WorkerError: fatal, on another thread; invalid, where the model's decoder takes no masks.
        """
        self._check()
        recording = self._recordings.get(len(row.tokens_S))
        if recording is None:
            row = row.to(self._target.device)
            return self._target.recordable(
                tokens_S=row.tokens_S, documents_S=row.documents_S, positions_1S=row.positions()
            )
        self._overwrite(recording.bytes, row)
        recording.replay()
        self.replayed_calls += recording.attention_calls
        return recording.hidden_SC

    def record(self, like: Packed) -> None:
        """Record a bucket's row; nothing is computed.

        Args:
            like: a row of the bucket, on the host, that went through `hidden_states` before; its values play
                no part.

        Raises:
            WorkerError: fatal, on another thread; invalid, where the model's code waits for the device or
                copies to it; exhausted, where the device has no room for the recording.
        """
        self._check()
        read = _small(like)
        packed = pack(read, pinned=False).to(self._target.device)
        tokens_S, documents_S, positions_1S = cut(packed, read)

        def work() -> Tensor:
            return self._target.recordable(
                tokens_S=tokens_S, documents_S=documents_S, positions_1S=positions_1S
            )

        what = f"record row of {len(tokens_S)} tokens"
        try:
            with AttentionCalls() as counted:
                replay, hidden_SC = self._recorder.record(work)
        except torch.OutOfMemoryError as err:
            raise WorkerError(Kind.EXHAUSTED, f"{what}: {err}", hint=f"a shorter bucket, or {_OFF}") from err
        except RuntimeError as err:  # a device's word for work that waits for it
            family = type(self._target.decoder).__name__
            raise WorkerError(
                Kind.INVALID,
                f"{what}: {family}: {_why(work) or _first(err)}",
                hint=f"code of this family waits for the device, or copies to it: {_OFF}",
            ) from err
        self._recordings[len(tokens_S)] = _Recording(
            bytes=packed, replay=replay, hidden_SC=hidden_SC, attention_calls=counted.total
        )

    def _overwrite(self, into: Tensor, row: Packed) -> None:
        """Put a row where a recording reads it: from the host in one transfer that nobody waits for."""
        small = _small(row)
        if row.tokens_S.device == self._target.device and not row.tokens_S.is_cpu:
            for place, tensor in zip(cut(into, small), small, strict=True):
                place.copy_(tensor)
            return
        into.copy_(pack(small, pinned=not into.is_cpu), non_blocking=True)

    def _check(self) -> None:
        if threading.get_ident() != self._thread:
            raise WorkerError(
                Kind.FATAL,
                f"replay row: want the thread that records, got {threading.current_thread().name!r}",
            )


def _why(work: Callable[[], object]) -> str:
    """The operator for which work cannot be recorded, found by doing it again; empty, where none is."""
    try:
        with NoWaits():
            work()
    except WorkerError as err:
        return err.message
    except RuntimeError:  # the device is in no state to tell
        return ""
    return ""


def _first(error: BaseException) -> BaseException:
    """What went wrong before all else: the end of a recording that failed raises once more."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def _small(row: Packed) -> list[Tensor]:
    """What a recording reads, in order."""
    return [row.tokens_S, row.documents_S, row.positions()]
