"""Regeneration: the target answers prompts itself, so that a drafter learns what the target says.

Prompts are windows of the corpus. Training samples come from training files;
held-out samples and evaluation prompts from held-out files, and no held-out
text is in both. Needs no torch when the answers are there already.
"""

from __future__ import annotations

from pathlib import Path

from dflash_runner.corpus import read_corpus
from dflash_runner.data import file_digest
from dflash_runner.job.fingerprint import fingerprint, read_facts, write_facts
from dflash_runner.job.reporter import Reporter
from dflash_runner.job.v1 import job_pb2
from dflash_runner.tensorfile import FileError
from dflash_runner.tokenizer import tokenizer_digest
from dflash_runner.whole import whole_directory

__all__ = ["FACTS_FILE", "regenerate"]

FACTS_FILE = "regenerate.json"
_VERSION = 1  # raised when equal settings would give other answers


def regenerate(job: job_pb2.Regenerate, *, threads: int, reporter: Reporter) -> None:
    """Writes samples and prompts, or finds that they are there already, and reports them.

    Raises:
        FileError: an impossible setting, too little text, an unusable target, or a directory in use.

    Source: paper arXiv 2602.06036 section 5 (responses are the target's own); proto Regenerate.
    """
    _check(job)
    directory, target = Path(job.directory), Path(job.target_directory)
    reporter.progress("corpus", 0, 1)
    corpus = read_corpus(
        job.corpus.source,
        files=job.corpus.files,
        max_bytes=job.corpus.max_bytes,
        heldout_every=job.corpus.heldout_every,
    )
    reporter.progress("corpus", 1, 1)
    print_ = fingerprint(
        job,
        leave_out=("directory", "target_directory", "corpus"),
        version=_VERSION,
        threads=threads,
        corpus=corpus.digest,
        tokenizer=tokenizer_digest(target),
        target=_weights_digest(target),
    )
    facts = read_facts(directory / FACTS_FILE, fingerprint=print_)
    reused = facts is not None
    if facts is None:
        from dflash_runner.job.answers import write_answers

        with whole_directory(directory) as partial:
            facts = write_answers(
                job, corpus=corpus, directory=partial, threads=threads, reporter=reporter
            ) | {"fingerprint": print_}
            write_facts(partial / FACTS_FILE, facts)
    reporter.result(
        {name: facts[name] for name in ("samples", "heldout_samples", "prompts", "new_tokens")},
        {"directory": str(directory), "fingerprint": print_, "reused": str(reused).lower()},
    )


def _check(job: job_pb2.Regenerate) -> None:
    """Refuses impossible settings, by the field's name."""
    for name in "samples prompt_tokens new_tokens batch".split():
        if not getattr(job, name):
            raise FileError(f"regenerate: {name}: want at least 1, got 0")
    if job.temperature < 0:
        raise FileError(f"regenerate: temperature: want at least 0, got {job.temperature}")
    if bool(job.eval_prompts) != bool(job.eval_prompt_tokens):
        raise FileError(
            f"regenerate: eval_prompt_tokens: want both it and eval_prompts or neither, "
            f"got {job.eval_prompt_tokens} and {job.eval_prompts}"
        )
    for name in ("directory", "target_directory"):
        if not getattr(job, name):
            raise FileError(f"regenerate: {name}: missing")


def _weights_digest(target: Path) -> str:
    """One digest over the target's configuration and weight files."""
    names = sorted(p for p in target.iterdir() if p.suffix == ".safetensors" or p.name == "config.json")
    return " ".join(file_digest(name) for name in names)
