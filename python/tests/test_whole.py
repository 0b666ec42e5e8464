"""Directories appear whole or not at all, and facts are believed only for equal jobs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from dflash_runner.job.fingerprint import fingerprint, read_facts, write_facts
from dflash_runner.tensorfile import FileError
from dflash_runner.whole import whole_directory
from jobs import target_job


def test_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "deep" / "made"
    with whole_directory(path) as partial:
        (partial / "a").write_text("1")
        assert not path.exists()
    assert (path / "a").read_text() == "1"
    assert [p.name for p in path.parent.iterdir()] == ["made"]


def test_nothing_stays_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), whole_directory(tmp_path / "made") as partial:
        (partial / "a").write_text("1")
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["file", "full"])
def test_what_is_there_is_not_touched(tmp_path, kind):
    path = tmp_path / "made"
    if kind == "file":
        path.write_text("mine")
    else:
        path.mkdir()
        (path / "mine").write_text("mine")
    with pytest.raises(FileError, match="there already"), whole_directory(path):
        pytest.fail("must not begin")
    assert (path if kind == "file" else path / "mine").read_text() == "mine"


def test_an_empty_directory_is_taken(tmp_path):
    (tmp_path / "made").mkdir()
    with whole_directory(tmp_path / "made") as partial:
        (partial / "a").touch()
    assert (tmp_path / "made" / "a").exists()


def test_leftovers_of_a_killed_builder_go_and_a_live_ones_stay(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from dflash_runner.whole import whole_directory\n"
        "with whole_directory(sys.argv[1]) as partial:\n"
        "    (partial / 'half').touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "made"
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=root, timeout=60)
    assert done.returncode == -9 and len(list(tmp_path.glob(".made.partial-*"))) == 1
    with whole_directory(path) as outer:
        assert list(tmp_path.glob(".made.partial-*")) == [outer], "the dead one's is gone"
        with pytest.raises(KeyError), whole_directory(path):
            raise KeyError
        assert outer.exists(), "a live builder's is kept"
    assert path.exists()


def test_facts_are_believed_only_under_their_fingerprint(tmp_path):
    job = target_job(tmp_path / "t")
    one = fingerprint(job, leave_out=("directory",), corpus="a")
    assert one == fingerprint(target_job(tmp_path / "other"), leave_out=("directory",), corpus="a")
    assert one != fingerprint(job, leave_out=("directory",), corpus="b")
    job.seed += 1
    assert one != fingerprint(job, leave_out=("directory",), corpus="a")
    path = tmp_path / "t" / "facts.json"
    assert read_facts(path, fingerprint=one) is None
    path.parent.mkdir()
    assert read_facts(path, fingerprint=one) is None, "an empty directory is no directory"
    write_facts(path, {"fingerprint": one, "x": 1})
    assert read_facts(path, fingerprint=one) == {"fingerprint": one, "x": 1}
    with pytest.raises(FileError, match="want fingerprint ff, got"):
        read_facts(path, fingerprint="ff")
    path.write_text("{")
    with pytest.raises(FileError, match=r"facts\.json"):
        read_facts(path, fingerprint=one)
