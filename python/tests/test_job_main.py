"""The job program: reports on a clean standard output, exit codes, no traceback for a user's mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dflash_runner.job.reporter import Reporter
from dflash_runner.job.v1 import job_pb2
from jobs import corpus, run, target_job

MISTAKES = [  # standard input, kind, message
    (b"", "invalid", "want one job, got none"),
    (b"\xff\xff", "invalid", "read job: "),
    (job_pb2.Job(prepare=job_pb2.Prepare()).SerializeToString(), "invalid", "threads: want at least 1"),
    (job_pb2.Job(threads=1, prepare=job_pb2.Prepare()).SerializeToString(), "invalid", "format: want one of"),
    (
        job_pb2.Job(threads=1, build_target=job_pb2.BuildTarget()).SerializeToString(),
        "invalid",
        "hidden_size: want more than 0",
    ),
]


@pytest.mark.parametrize(("stdin", "kind", "message"), MISTAKES)
def test_a_users_mistake_ends_in_2_with_one_error_line(stdin, kind, message):
    code, reports, stderr = run(stdin)
    assert code == 2
    assert [list(r) for r in reports] == [["error"]]
    error = reports[0]["error"]
    assert error.kind == kind and message in error.message
    assert "Traceback" not in stderr
    logged = [json.loads(line) for line in stderr.splitlines()]
    assert logged[-1]["@level"] == "info", "the report says it already, and a warning would show beside it"
    assert message in logged[-1]["err"]


def test_noise_on_stdout_cannot_break_the_reports(tmp_path):
    """A module that prints when it is imported, in Python and below it, as libraries do."""
    noisy = tmp_path / "torch"
    noisy.mkdir()
    (noisy / "__init__.py").write_text(
        "import os\nprint('python noise')\nos.write(1, b'raw noise\\n')\n"
        "raise RuntimeError('broken install')\n"
    )
    job = job_pb2.Job(threads=1, build_target=target_job(tmp_path / "target"))
    root = Path(__file__).parents[1]
    code, reports, stderr = run(
        job.SerializeToString(), environment={"PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"}
    )
    assert code == 1, "not the user's mistake"
    assert "error" in reports[-1] and reports[-1]["error"].kind == "internal"
    assert "broken install" in reports[-1]["error"].message
    assert "raw noise" in stderr
    assert not (tmp_path / "target").exists()
    assert not list(tmp_path.glob(".target*"))


def test_a_job_done_twice_is_found_again_without_torch(tmp_path):
    job = job_pb2.Job(threads=1, build_target=target_job(tmp_path / "target", steps=2))
    code, reports, _ = run(job.SerializeToString())
    assert code == 0, reports
    first = reports[-1]["result"]
    assert first.facts["reused"] == "false"
    assert {stage["progress"].stage for stage in reports[:-1]} == {"corpus", "target"}
    weights = (tmp_path / "target" / "model.safetensors").read_bytes()
    broken = tmp_path / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('torch is not to be imported')\n")
    root = Path(__file__).parents[1]
    code, reports, _ = run(
        job.SerializeToString(), environment={"PYTHONPATH": f"{broken.parent}{os.pathsep}{root}"}
    )
    assert code == 0, reports
    again = reports[-1]["result"]
    assert again.facts["reused"] == "true" and again.figures == first.figures
    assert (tmp_path / "target" / "model.safetensors").read_bytes() == weights


def test_a_missing_file_is_named_without_traceback(tmp_path):
    job = job_pb2.Job(
        threads=1,
        build_target=target_job(
            tmp_path / "t", corpus=corpus(source="files", files=[str(tmp_path / "none.txt")])
        ),
    )
    code, reports, stderr = run(job.SerializeToString())
    assert code == 2 and "none.txt: No such file" in reports[-1]["error"].message
    assert "Traceback" not in stderr


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lines(fd: int) -> list[dict]:
    return [json.loads(line) for line in os.read(fd, 1 << 16).split(b"\n") if line]


def test_progress_is_thinned_but_first_and_last_are_said():
    read, write = os.pipe()
    clock = Clock()
    reporter = Reporter(write, clock=clock)
    for done in range(101):
        clock.now = done * 0.1
        reporter.progress("target", done, 100, loss=1.5)
    said = [int(line["progress"].get("done", 0)) for line in lines(read)]
    assert said[0] == 0 and said[-1] == 100
    assert 30 <= len(said) <= 42, "about four a second over ten seconds"
    reporter.progress("export", 0, 1)
    assert lines(read)[0]["progress"]["stage"] == "export", "a new stage is said at once"
    os.close(write)
    os.close(read)


def test_a_reader_that_is_gone_does_not_end_the_job():
    read, write = os.pipe()
    os.close(read)
    Reporter(write).result({"a": 1.0}, {"b": "c"}, ["d"])
    os.close(write)


def test_a_signal_ends_the_job_and_leaves_nothing(tmp_path):
    job = job_pb2.Job(threads=1, build_target=target_job(tmp_path / "target", steps=1_000_000))
    root = Path(__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "dflash_runner.job"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    with process:
        process.stdin.write(job.SerializeToString())
        process.stdin.close()
        while b'"stage": "target"' not in (line := process.stdout.readline()):
            assert line, "it ended before it trained"
        assert list(tmp_path.glob(".target.partial-*")), "it is at work"
        process.send_signal(signal.SIGUSR1)  # not for it
        process.send_signal(signal.SIGTERM)
        last = process.stdout.read().splitlines()[-1]
    assert process.returncode == 1
    assert json.loads(last)["error"]["kind"] == "canceled"
    assert not list(tmp_path.iterdir())
