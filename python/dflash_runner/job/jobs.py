"""Which function does which job. Each imports what it needs: torch costs seconds."""

from __future__ import annotations

from dflash_runner.job.reporter import Reporter
from dflash_runner.job.v1 import job_pb2

__all__ = ["do"]


def do(job: job_pb2.Job, which: str, reporter: Reporter) -> None:
    """Does the one job that is set and reports its result.

    Args:
        job: with `threads` of at least 1.
        which: the name of the field that is set.
        reporter: takes progress and the result.

    Raises:
        FileError, WorkerError: as the job's own function says.
    """
    if which == "prepare":
        from dflash_runner.job.prepare import prepare

        prepare(job.prepare, reporter=reporter)
    elif which == "build_target":
        from dflash_runner.job.build_target import build_target

        build_target(job.build_target, threads=job.threads, reporter=reporter)
    elif which == "regenerate":
        from dflash_runner.job.regenerate import regenerate

        regenerate(job.regenerate, threads=job.threads, reporter=reporter)
    elif which == "export":
        from dflash_runner.job.export import export

        export(job.export, threads=job.threads, reporter=reporter)
    else:
        assert which == "evaluate", which
        from dflash_runner.job.evaluate import evaluate

        evaluate(job.evaluate, threads=job.threads, reporter=reporter)
