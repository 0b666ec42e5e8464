"""What the tests of jobs share: a reporter that remembers, small jobs, a small target."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash_runner.job.build_target import build_target
from dflash_runner.job.v1 import job_pb2
from google.protobuf import json_format


class Memory:
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int, int]] = []
        self.figures: dict[str, float] = {}
        self.facts: dict[str, str] = {}
        self.warnings: list[str] = []

    def progress(self, stage: str, done: int, total: int, **figures: float) -> None:  # noqa: ARG002
        self.stages.append((stage, done, total))

    def result(
        self, figures: Mapping[str, float], facts: Mapping[str, str], warnings: Sequence[str] = ()
    ) -> None:
        self.figures, self.facts, self.warnings = dict(figures), dict(facts), list(warnings)


def corpus(**fields: Any) -> job_pb2.Corpus:
    """A small part of the standard library."""
    return job_pb2.Corpus(**({"source": "python-stdlib", "max_bytes": 60_000, "heldout_every": 3} | fields))


def target_job(directory: Path, **fields: Any) -> job_pb2.BuildTarget:
    """A target of two small layers."""
    small = {
        "corpus": corpus(),
        "hidden_size": 32,
        "intermediate_size": 48,
        "layers": 2,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 16,
        "initializer_range": 0.08,
        "learning_rate": 0.01,
        "steps": 8,
        "batch": 4,
        "sequence": 32,
        "seed": 3,
    }
    return job_pb2.BuildTarget(directory=str(directory), **(small | fields))


def make_target(directory: Path, **fields: Any) -> Memory:
    """Builds one, in this process, with one thread."""
    memory = Memory()
    build_target(target_job(directory, **fields), threads=1, reporter=memory)
    return memory


def run(
    stdin: bytes, *, environment: Mapping[str, str] | None = None
) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, reports and standard error of `python -m dflash_runner.job`."""
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "dflash_runner.job"],
        input=stdin,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(root)} | dict(environment or {}),
        timeout=120,
    )
    lines = [line for line in done.stdout.decode().split("\n") if line]
    reports = [json_format.Parse(line, job_pb2.Report()) for line in lines]
    named = [{r.WhichOneof("report"): getattr(r, r.WhichOneof("report"))} for r in reports]
    return done.returncode, named, done.stderr.decode()
