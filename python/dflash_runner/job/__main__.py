"""`python -m dflash_runner.job`: one Job on standard input, Report lines on standard output.

Exit codes: 0 done, 1 failed, 2 the user's mistake. The last line is a result or
an error; logs, and whatever a library prints, go to standard error.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from dflash_runner import log
from dflash_runner.errors import Kind, WorkerError, describe
from dflash_runner.job.reporter import Reporter
from dflash_runner.job.v1 import job_pb2

_USER_KINDS = (Kind.INVALID, Kind.NOT_FOUND)


class _Stopped(Exception):
    """A signal asked the job to end."""


def main() -> int:
    """The exit code of the one job that standard input names."""
    reporter = Reporter(_take_stdout())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # the supervisor's; batch systems send it to every process
    try:
        _run(sys.stdin.buffer.read(), reporter)
    except _Stopped:
        reporter.error(Kind.CANCELED.label, "run job: stopped by a signal", "")
        return 1
    except Exception as err:  # noqa: BLE001 - the edge: everything becomes one error report
        return _fail(err, reporter)
    return 0


def _take_stdout() -> int:
    """A private copy of standard output; file descriptor 1 becomes standard error.

    So nothing that prints, in Python or below it, can break the reports.
    """
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    return saved


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the handler's signature
    """Ends the job at the next bytecode, so that half-made directories are removed."""
    raise _Stopped


def _run(raw: bytes, reporter: Reporter) -> None:
    """Reads the job and does it.."""
    from google.protobuf.message import DecodeError

    try:
        job = job_pb2.Job.FromString(raw)
    except DecodeError as err:
        raise WorkerError(Kind.INVALID, f"read job: {err}") from err
    which = job.WhichOneof("job")
    if which is None:
        raise WorkerError(Kind.INVALID, f"read job: want one job, got none in {len(raw)} bytes")
    if not job.threads:
        raise WorkerError(Kind.INVALID, "read job: threads: want at least 1, got 0")
    # before torch; a supervisor sets both, a person may not. Endless spinning cost up to 17
    # times on shared cores, none at all 1.9 times on quiet ones (measured)
    os.environ |= {"OMP_NUM_THREADS": str(job.threads), "OMP_WAIT_POLICY": "passive"}
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    from dflash_runner.job.jobs import do

    log.info("job started", kind=which)
    do(job, which, reporter)
    log.info("job done", kind=which)


def _fail(err: Exception, reporter: Reporter) -> int:
    """Reports an error; a traceback goes to the log, and only for what is not the user's mistake."""
    failure = describe(err)
    user = failure.kind in _USER_KINDS
    if user:
        log.info("job refused", err=failure.message)  # the report is what the user is shown
    else:
        log.error("job failed", err=failure.message, traceback=list(failure.traceback))
    reporter.error(failure.kind.label, failure.message, failure.hint)
    return 2 if user else 1


if __name__ == "__main__":
    sys.exit(main())
