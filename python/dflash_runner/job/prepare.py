"""Preparation: samples of any format become a dataset that workers map and the supervisor packs."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dflash_runner.data import Skipped, file_digest
from dflash_runner.data_writer import DatasetWriter, write_prompts
from dflash_runner.job.fingerprint import fingerprint, read_facts, write_facts
from dflash_runner.job.mistakes import Mistakes
from dflash_runner.job.reporter import Reporter
from dflash_runner.job.samples import FORMATS, Sample, read_samples
from dflash_runner.job.v1 import job_pb2
from dflash_runner.tensorfile import FileError
from dflash_runner.tokenizer import load_tokenizer, tokenizer_digest
from dflash_runner.whole import whole_directory

__all__ = ["FACTS_FILE", "PROMPTS_FILE", "prepare"]

FACTS_FILE = "prepare.json"
PROMPTS_FILE = "prompts.safetensors"
_VERSION = 1  # raised when equal input would give another dataset


@dataclass(kw_only=True, slots=True)
class _Tally:
    """What became of the documents."""

    cut: int = 0
    first_cut: str = ""
    first_without_anchor: str = ""
    skipped: list[Skipped] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)


def prepare(job: job_pb2.Prepare, *, reporter: Reporter) -> None:
    """Writes the dataset, or finds that it is there already, and reports it.

    Raises:
        FileError: an impossible setting, an unreadable file, nothing to train on, or a directory in use.

    Source: proto/dflash_runner/job/v1/job.proto, Prepare; SpecForge since #731 for valid anchors.
    """
    _check(job)
    directory, files = Path(job.directory), [Path(name) for name in job.files]
    missing = Mistakes()
    for path in files:
        if not path.is_file():
            missing.add(FileError(f"read {path}: no such file"))
    missing.refuse()
    print_ = fingerprint(
        job,
        leave_out=("directory", "target_directory", "prompts"),
        version=_VERSION,
        tokenizer=tokenizer_digest(job.target_directory),
        files=" ".join(file_digest(path) for path in files),
    )
    facts = read_facts(directory / FACTS_FILE, fingerprint=print_)
    reused = facts is not None
    if facts is None:
        with whole_directory(directory) as partial:
            facts = _write(job, files, partial, reporter) | {"fingerprint": print_}
            write_facts(partial / FACTS_FILE, facts)
    if job.prompts:
        _copy(directory / PROMPTS_FILE, Path(job.prompts))
    reporter.result(
        facts["figures"],
        {
            "directory": str(directory),
            "fingerprint": print_,
            "data_sha256": facts["data_sha256"],
            "reused": str(reused).lower(),
        },
        facts["warnings"],
    )


def _check(job: job_pb2.Prepare) -> None:
    """Refuses impossible settings, by the field's name."""
    if job.format not in FORMATS:
        raise FileError(f"prepare: format: want one of {', '.join(FORMATS)}, got {job.format!r}")
    if job.block_size < 2:
        raise FileError(f"prepare: block_size: want at least 2, got {job.block_size}")
    if job.minimum_tokens < 2:
        raise FileError(f"prepare: minimum_tokens: want at least 2, got {job.minimum_tokens}")
    if job.max_tokens < job.minimum_tokens:
        raise FileError(
            f"prepare: max_tokens: want at least minimum_tokens {job.minimum_tokens}, got {job.max_tokens}"
        )
    if len({bool(job.prompts), bool(job.eval_prompts), bool(job.eval_prompt_tokens)}) > 1:
        raise FileError(
            "prepare: prompts: want it with eval_prompts and eval_prompt_tokens, or none of them, "
            f"got {job.prompts!r}, {job.eval_prompts} and {job.eval_prompt_tokens}"
        )
    for name in ("directory", "target_directory"):
        if not getattr(job, name):
            raise FileError(f"prepare: {name}: missing")
    if not job.files:
        raise FileError("prepare: files: nothing to train on: want at least one file, got none")
    if len(set(job.files)) < len(job.files):
        twice = next(name for i, name in enumerate(job.files) if name in job.files[:i])
        raise FileError(f"prepare: files: {twice}: named twice")


def _write(job: job_pb2.Prepare, files: Sequence[Path], partial: Path, reporter: Reporter) -> dict[str, Any]:
    """Tokenises everything and writes all but the facts, which it returns."""
    tokenizer = functools.cache(lambda: load_tokenizer(job.target_directory))
    tally = _Tally()
    with DatasetWriter(
        partial,
        sources=[str(path) for path in files],
        tokenizer_sha256=tokenizer_digest(job.target_directory),
    ) as writer:
        for source, sample in _samples(job, files, tokenizer, reporter):
            _add(job, writer, tally, source, sample)
        if not writer.samples:
            raise FileError(
                f"prepare: nothing to train on: {len(tally.skipped)} documents in {len(files)} files, "
                f"none of at least {job.minimum_tokens} tokens"
            )
        if writer.samples == writer.without_anchor:
            raise FileError(
                f"prepare: nothing to train on: none of {writer.samples} samples has a valid anchor",
                hint="an anchor is a supervised token followed by another; look at the loss masks",
            )
        if job.eval_prompts:
            _write_prompts(job, tally, writer.samples, partial)
        data_sha256 = writer.finish(skipped=tally.skipped)
        figures = {
            "samples": writer.samples,
            "tokens": writer.total_tokens,
            "supervised": writer.total_supervised,
            "without_anchor": writer.without_anchor,
            "skipped": len(tally.skipped),
            "cut": tally.cut,
        }
    return {
        "format": "dflash-runner-prepared/1",
        "figures": figures,
        "data_sha256": data_sha256,
        "warnings": _warnings(job, tally, figures),
    }


def _samples(
    job: job_pb2.Prepare, files: Sequence[Path], tokenizer: Callable[[], Any], reporter: Reporter
) -> Iterator[tuple[int, Sample]]:
    """Every file's samples with the file's number; progress goes by files."""
    vocabulary, mistakes = _vocabulary(Path(job.target_directory), tokenizer), Mistakes()
    for source, path in enumerate(files):
        reporter.progress("prepare", source, len(files))
        for sample in read_samples(
            path,
            tokenizer=tokenizer,
            vocabulary=vocabulary,
            form=job.format,
            max_tokens=job.max_tokens,
            mistakes=mistakes,
        ):
            yield source, sample
    mistakes.refuse()
    reporter.progress("prepare", len(files), len(files))


def _vocabulary(target: Path, tokenizer: Callable[[], Any]) -> int:
    """How many ids the target knows: its configuration's, or the tokenizer's where there is none."""
    try:
        size = json.loads((target / "config.json").read_bytes()).get("vocab_size")
    except FileNotFoundError:
        return len(tokenizer())
    except (ValueError, AttributeError) as err:
        raise FileError(f"read {target / 'config.json'}: {err}") from err
    return size if type(size) is int else len(tokenizer())


def _add(job: job_pb2.Prepare, writer: DatasetWriter, tally: _Tally, source: int, sample: Sample) -> None:
    """Adds one sample, cut where it is too long, or records why not."""
    name = writer.sources[source]
    where = f"{name}:{sample.line}" if sample.line else name
    if len(sample.tokens) < job.minimum_tokens:
        reason = f"{len(sample.tokens)} tokens, shorter than {job.minimum_tokens}"
        tally.skipped.append(Skipped(source=name, line=sample.line, reason=reason))
        return
    if len(sample.tokens) > job.max_tokens:
        tally.cut += 1
        tally.first_cut = tally.first_cut or f"{where} has {len(sample.tokens)}"
    if len(tally.prompts) < job.eval_prompts and (prompt := _prompt(sample, job.eval_prompt_tokens)):
        tally.prompts.append(prompt)
    tokens, mask = sample.tokens[: job.max_tokens], sample.loss_mask[: job.max_tokens]
    if not writer.add(tokens, mask, source=source):
        tally.first_without_anchor = tally.first_without_anchor or where


def _prompt(sample: Sample, tokens: int) -> list[int]:
    """The last tokens before a sample's first supervised one; of a text without a prompt, its first tokens.

    Empty where the sample has no prompt of that length with something after it.
    """
    first = sample.loss_mask.index(1) if 1 in sample.loss_mask else 0
    end = first or tokens
    return sample.tokens[end - tokens : end] if tokens <= end < len(sample.tokens) else []


def _write_prompts(job: job_pb2.Prepare, tally: _Tally, samples: int, partial: Path) -> None:
    """The evaluation prompts, as many as were asked for."""
    if len(tally.prompts) < job.eval_prompts:
        raise FileError(
            f"prepare: want {job.eval_prompts} evaluation prompts of {job.eval_prompt_tokens} tokens, "
            f"got {len(tally.prompts)} in {samples} samples",
            hint="evaluate fewer or shorter prompts, or give more held-out samples",
        )
    write_prompts(partial / PROMPTS_FILE, np.array(tally.prompts))


def _copy(source: Path, path: Path) -> None:
    """Copies a file so that `path` has all of it or what it had before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        shutil.copyfile(source, beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _warnings(job: job_pb2.Prepare, tally: _Tally, figures: dict[str, int]) -> list[str]:
    """What the user should know of the documents, one line a matter."""
    warnings = []
    if tally.skipped:
        first = tally.skipped[0]
        warnings.append(
            f"{len(tally.skipped)} documents skipped; first {first.source}:{first.line}: {first.reason}"
        )
    if figures["without_anchor"]:
        warnings.append(
            f"{figures['without_anchor']} samples without a valid anchor, never planned; first "
            f"{tally.first_without_anchor}"
        )
    if tally.cut:
        warnings.append(f"{tally.cut} samples cut to {job.max_tokens} tokens; first {tally.first_cut}")
    return warnings
