"""A target's rows, recorded once a bucket on the GPU and replayed: the host launches one thing for a forward.

What is recorded is `FrozenTarget.recordable`: the same kernels on the same memory, so the same bits. A row's
tokens, documents and positions, and where rows are compiled its masks by tiles, are copied to where the
recording reads them, in one transfer, and its hidden states are left where the recording leaves them until
the next row of the bucket. A replay runs no line of Python, so what the compiled parts refuse is asked for
before each.

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
from dflash_runner.watch import AttentionCalls, Calls, CompiledCalls

_OFF = "target.replay: false makes rows as they come"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Recording:
    """A bucket's."""

    bytes: Tensor  # what the recorded kernels read, one behind the other: see `_read`
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
        self.replayed_calls = 0  # of torch's attention, by all replays: a compiled one has its own counter

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
            return self._target.masked_hidden_states(row)
        self._overwrite(recording.bytes, row)
        recording.replay()
        if (kernels := self._target.kernels) is None:
            self.replayed_calls += recording.attention_calls
        else:
            kernels.counter.calls += recording.attention_calls
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
        read, kernels = self._read(like), self._target.kernels
        with torch.inference_mode(False):  # what is compiled tells tensors made within apart
            packed = pack(read, pinned=False).to(self._target.device)
            tokens_S, documents_S, positions_1S, *lists = cut(packed, read)

        def work() -> Tensor:
            return self._target.recordable(
                tokens_S=tokens_S, documents_S=documents_S, positions_1S=positions_1S, lists=lists
            )

        what = f"record row of {len(tokens_S)} tokens"
        counts: Calls = AttentionCalls()
        if kernels is not None:
            counts = CompiledCalls(kernels.counter, device=self._target.device.type, named=False)
        try:
            with counts:
                replay, hidden_SC = self._recorder.record(work)
        except torch.OutOfMemoryError as err:
            raise WorkerError(Kind.EXHAUSTED, f"{what}: {err}", hint=f"a shorter bucket, or {_OFF}") from err
        except RuntimeError as err:  # a device's word for work that waits for it
            family = type(self._target.decoder).__name__
            why = _why(work) if kernels is None else ""  # what is compiled would be compiled again
            raise WorkerError(
                Kind.INVALID,
                f"{what}: {family}: {why or _first(err)}",
                hint=f"code of this family waits for the device, or copies to it: {_OFF}",
            ) from err
        if kernels is not None:
            kernels.counter.calls -= counts.total  # recorded, not run
        self._recordings[len(tokens_S)] = _Recording(
            bytes=packed, replay=replay, hidden_SC=hidden_SC, attention_calls=counts.total
        )

    def _overwrite(self, into: Tensor, row: Packed) -> None:
        """Put a row where a recording reads it: from the host in one transfer that nobody waits for."""
        small = self._read(row)
        if row.tokens_S.device == self._target.device and not row.tokens_S.is_cpu:
            for place, tensor in zip(cut(into, small), small, strict=True):
                place.copy_(tensor)
            return
        into.copy_(pack(small, pinned=not into.is_cpu), non_blocking=True)

    def _read(self, row: Packed) -> list[Tensor]:
        """What a recording reads, in order: tokens, documents, positions, and what masks are made of."""
        return [row.tokens_S, row.documents_S, row.positions(), *self._target.lists(row)]

    def _check(self) -> None:
        if self._target.kernels is not None:
            self._target.kernels.check()
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
