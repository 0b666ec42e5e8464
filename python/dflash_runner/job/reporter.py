"""What a job says on its saved standard output: Report messages, one a line.

Progress is thinned to a few lines a second; results and errors never are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from google.protobuf import json_format

from dflash_runner.job.v1 import job_pb2

__all__ = ["Reporter"]

_INTERVAL_S = 0.25


class Reporter:
    """Writes reports to a file descriptor. Called from one thread.

    A reader that is gone does not end the job here: its parent's death does.
    """

    def __init__(self, fd: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._fd = fd
        self._clock = clock
        self._stage = ""
        self._next_at = 0.0

    def progress(self, stage: str, done: int, total: int, **figures: float) -> None:
        """Says how far a stage is, unless it said so a moment ago.

        The first and the last line of a stage are always written.

        Args:
            stage: a lowercase name.
            done: units of work finished, of `total`.
            figures: "loss", "tokens_per_s" and the like.
        """
        now = self._clock()
        if stage == self._stage and done < total and now < self._next_at:
            return
        self._stage, self._next_at = stage, now + _INTERVAL_S
        self._write(
            job_pb2.Report(progress=job_pb2.Progress(stage=stage, done=done, total=total, figures=figures))
        )

    def result(
        self, figures: Mapping[str, float], facts: Mapping[str, str], warnings: Sequence[str] = ()
    ) -> None:
        """Says what came out; the last line of a job that succeeded.

        Args:
            figures: numbers by name, units in the names.
            facts: text by name.
            warnings: what the user should know though the job succeeded.
        """
        self._write(
            job_pb2.Report(result=job_pb2.Result(figures=figures, facts=facts, warnings=list(warnings)))
        )

    def error(self, kind: str, message: str, hint: str) -> None:
        """Says why nothing came out; the last line of a job that did not succeed.

        Args:
            kind: a name of `errors.Kind`, in lower case.
            message: what, expected, got, where.
            hint: what to do, or empty.
        """
        self._write(job_pb2.Report(error=job_pb2.Error(kind=kind, message=message, hint=hint)))

    def _write(self, report: job_pb2.Report) -> None:
        """One whole line."""
        text = json_format.MessageToJson(report, indent=None, preserving_proto_field_name=True)
        view = memoryview(text.encode() + b"\n")
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BrokenPipeError:
                return
