"""A micro-step recorded once a bucket on the GPU, and replayed: the host launches one thing for hundreds.

What is recorded is the very call that warm-up ran and certified: the same kernels on the same memory, so the
same bits. A row is copied to where the recording reads it, and its figures are copied from where it leaves
them. A replay runs no line of Python, so what the compiled functions refuse is asked for before each.

Shapes: S tokens of the row, C captured width.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from dflash_runner.errors import Kind, WorkerError
from dflash_runner.preparation import Prepared

Figures = tuple[Tensor, Tensor]
"""A row's loss: (numerator, denominator), 0-d float32."""

T = TypeVar("T")

Step = Callable[[Prepared, bool], Figures]
"""Forward and backward of a row; true: its gradients are the step's first, written and not added."""


class Counter(Protocol):
    """Counts calls that a certificate states; a replay makes none of them, and is counted all the same."""

    calls: int


class Recorder(Protocol):
    """Records what a device is told to do."""

    def record(self, work: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """What does it again, and the tensors that it then leaves its figures in: those that `work` gave."""

    @property
    def held_bytes(self) -> int:
        """Of the device, by all that was recorded, between replays too."""


class CudaRecorder:
    """CUDA graphs that share one pool of memory: no two of them run at once."""

    def __init__(self, device: torch.device) -> None:
        """Make the pool."""
        self._device, self._pool, self.held_bytes = device, torch.cuda.graph_pool_handle(), 0

    def record(self, work: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Record, which runs nothing. Other threads may use the device meanwhile, on streams of their own.

        Raises:
            Exception: of torch, for work that waits for the device.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            before = torch.cuda.memory_reserved(self._device)  # of nothing that is kept to be given out again
            figures = work()
        self.held_bytes += torch.cuda.memory_reserved(self._device) - before
        return graph.replay, figures


@dataclass(frozen=True, kw_only=True, slots=True)
class _Recording:
    """A bucket's."""

    row: Prepared  # what the recorded kernels read
    replay: dict[bool, Callable[[], None]]  # by whether it is the step's first row
    figures: dict[bool, Figures]
    calls: tuple[int, ...]  # of one replay, by counter


class Replays:
    """The recordings of a trainer, one a bucket; used on the thread that made it alone."""

    def __init__(
        self, recorder: Recorder, *, checks: Sequence[Callable[[], None]], counters: Sequence[Counter]
    ) -> None:
        """Nothing is recorded yet.

        Args:
            recorder: of the device.
            checks: of every compiled function that is recorded: they raise once it has refused a call.
            counters: of attention and products, which count replayed calls as well.
        """
        self._recorder, self._checks, self._counters = recorder, tuple(checks), tuple(counters)
        self._recordings: dict[int, _Recording] = {}
        self._thread = threading.get_ident()

    @property
    def held_bytes(self) -> int:
        """Of the device, by the recordings' activations."""
        return self._recorder.held_bytes

    def holds(self, row: Prepared) -> bool:
        """Whether the row's bucket is recorded."""
        return len(row.hidden_SC) in self._recordings

    def record(self, like: Prepared, step: Step) -> None:
        """Record a bucket's micro-step, first and later row of a step; nothing is computed.

        Args:
            like: a row of the bucket, whose values play no part.
            step: everything in it ran before, with a row of this bucket.

        Raises:
            WorkerError: fatal, on another thread or where a compiled function refused a call.
        """
        self._check()
        row, before = like.copy(), [counter.calls for counter in self._counters]
        made = {first: self._recorder.record(lambda first=first: step(row, first)) for first in (True, False)}
        calls = []
        for counter, was in zip(self._counters, before, strict=True):
            calls.append((counter.calls - was) // len(made))
            counter.calls = was  # recorded, not run
        self._recordings[len(row.hidden_SC)] = _Recording(
            row=row,
            replay={first: replay for first, (replay, _) in made.items()},
            figures={first: figures for first, (_, figures) in made.items()},
            calls=tuple(calls),
        )

    def run(self, row: Prepared, *, first: bool) -> Figures:
        """A row's micro-step; queued, not waited for. The figures are the caller's own.

        Args:
            row: of a recorded bucket.
            first: whether it is the first of its step.

        Raises:
            WorkerError: fatal, on another thread, where a compiled function refused a call, or for a row of
                another layout than the recorded one.
        """
        self._check()
        recording = self._recordings[len(row.hidden_SC)]
        recording.row.overwrite(row)
        recording.replay[first]()
        for counter, calls in zip(self._counters, recording.calls, strict=True):
            counter.calls += calls
        numerator, denominator = recording.figures[first]
        return numerator.clone(), denominator.clone()

    def _check(self) -> None:
        if threading.get_ident() != self._thread:
            raise WorkerError(
                Kind.FATAL,
                f"replay micro-step: want the thread that records, got {threading.current_thread().name!r}",
            )
        for check in self._checks:
            check()
