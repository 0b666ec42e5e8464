"""The embedded target: which one is wanted, and whether it is there already. Needs no torch when it is."""

from __future__ import annotations

from pathlib import Path

from dflash_runner.corpus import read_corpus
from dflash_runner.job.fingerprint import fingerprint, read_facts, write_facts
from dflash_runner.job.reporter import Reporter
from dflash_runner.job.v1 import job_pb2
from dflash_runner.tensorfile import FileError
from dflash_runner.whole import whole_directory

__all__ = ["FACTS_FILE", "build_target"]

FACTS_FILE = "target.json"
_VERSION = 1  # raised when equal settings would give another target


def build_target(job: job_pb2.BuildTarget, *, threads: int, reporter: Reporter) -> None:
    """Builds the target's directory, or finds that it is there already, and reports it.

    Raises:
        FileError: an impossible setting, an unusable corpus, or another target in the directory.

    Source: proto/dflash_runner/job/v1/job.proto, BuildTarget.
    """
    _check(job)
    directory = Path(job.directory)
    reporter.progress("corpus", 0, 1)
    corpus = read_corpus(
        job.corpus.source,
        files=job.corpus.files,
        max_bytes=job.corpus.max_bytes,
        heldout_every=job.corpus.heldout_every,
    )
    reporter.progress("corpus", 1, 1)
    print_ = fingerprint(
        job, leave_out=("directory", "corpus"), version=_VERSION, threads=threads, corpus=corpus.digest
    )
    facts = read_facts(directory / FACTS_FILE, fingerprint=print_)
    reused = facts is not None
    if facts is None:
        from dflash_runner.job.train_target import train_target

        with whole_directory(directory) as partial:
            facts = train_target(
                job, corpus=corpus, directory=partial, threads=threads, reporter=reporter
            ) | {"fingerprint": print_}
            write_facts(partial / FACTS_FILE, facts)
    reporter.result(
        {
            "heldout_top1": facts["heldout_top1"],
            "heldout_loss": facts["heldout_loss"],
            "parameters": facts["parameters"],
        },
        {
            "directory": str(directory),
            "fingerprint": print_,
            "corpus_sha256": corpus.digest,
            "reused": str(reused).lower(),
        },
    )


def _check(job: job_pb2.BuildTarget) -> None:
    """Refuses settings that no model can have, by the field's name."""
    positive = "hidden_size intermediate_size layers heads kv_heads head_dim steps batch sequence".split()
    for name in (*positive, "initializer_range", "learning_rate"):
        if not getattr(job, name) > 0:
            raise FileError(f"build target: {name}: want more than 0, got {getattr(job, name)}")
    if job.heads % job.kv_heads:
        raise FileError(f"build target: heads: want a multiple of kv_heads {job.kv_heads}, got {job.heads}")
    if job.head_dim % 2:
        raise FileError(f"build target: head_dim: want an even number, got {job.head_dim}")
    if job.weight_decay < 0:
        raise FileError(f"build target: weight_decay: want at least 0, got {job.weight_decay}")
    if not job.directory:
        raise FileError("build target: directory: missing")
