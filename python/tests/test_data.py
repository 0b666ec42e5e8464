"""Datasets and prompts: what is written is read back, and nothing altered is accepted."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from dflash_runner.data import Dataset, Skipped, count_anchors, file_digest, read_prompts
from dflash_runner.data_writer import DatasetWriter, write_prompts, write_tensors
from dflash_runner.tensorfile import FileError, open_tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

SAMPLES = [
    ([5, 6, 7, 8], [0, 1, 1, 1]),
    ([9, 9], [0, 1]),  # one supervised token: no valid anchor
    ([1, 2, 3, 4, 5, 6], [1, 1, 0, 1, 1, 0]),
]
SKIPPED = [Skipped(source="b.txt", line=3, reason="shorter than 2 tokens")]


def write(directory: Path, samples=SAMPLES, skipped=()) -> str:
    directory.mkdir(exist_ok=True)
    with DatasetWriter(directory, sources=["a.txt", "b.txt"], tokenizer_sha256="ab" * 32) as writer:
        for i, (tokens, mask) in enumerate(samples):
            writer.add(tokens, mask, source=i % 2)
        return writer.finish(skipped=skipped)


def rewrite(path: Path, metadata=(), **tensors) -> None:
    """Alters a file's tensors and metadata; None drops one."""
    old = open_tensors(path)
    keep = {k: np.array(v) for k, v in old.tensors.items()} | tensors
    meta = dict(old.metadata) | dict(metadata)
    write_tensors(
        path,
        {k: v for k, v in keep.items() if v is not None},
        {k: v for k, v in meta.items() if v is not None},
    )


def test_round_trip(tmp_path):
    digest = write(tmp_path, skipped=SKIPPED)
    data = Dataset.open(tmp_path)
    assert len(data) == 3
    for i, (tokens, mask) in enumerate(SAMPLES):
        got, got_mask = data.sample(i)
        assert got.tolist() == tokens and got_mask.tolist() == mask
        assert got.dtype == np.int32 and got_mask.dtype == np.uint8
        assert not got.flags.writeable and not got.flags.owndata, "a view of the mapping"
    assert data.tokens.tolist() == [4, 2, 6] and data.offset.tolist() == [0, 4, 6]
    assert data.supervised.tolist() == [3, 1, 4] and data.anchors.tolist() == [2, 0, 2]
    assert data.source.tolist() == [0, 1, 0] and data.sources == ("a.txt", "b.txt")
    assert data.skipped == tuple(SKIPPED) and data.tokenizer_digest == "ab" * 32
    assert data.digest == digest == file_digest(tmp_path / "data.safetensors")
    data.verify()
    with pytest.raises(IndexError, match="sample 3: want 0 to 2"):
        data.sample(3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.safetensors", "index.safetensors"]


def test_files_are_public_safetensors_and_deterministic(tmp_path):
    write(tmp_path / "a", skipped=SKIPPED)
    write(tmp_path / "b", skipped=SKIPPED)
    for name in ("data.safetensors", "index.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    with safe_open(tmp_path / "a" / "index.safetensors", "numpy") as file:
        assert set(file.keys()) == {"offset", "tokens", "supervised", "anchors", "source"}
        assert json.loads(file.metadata()["skipped"]) == [
            {"source": "b.txt", "line": 3, "reason": "shorter than 2 tokens"}
        ]
    with safe_open(tmp_path / "a" / "data.safetensors", "numpy") as file:
        assert file.get_tensor("tokens").tolist() == [t for s in SAMPLES for t in s[0]]


def test_reads_files_of_the_public_writer(tmp_path):
    save_file({"tokens": np.arange(6, dtype=np.int32)}, tmp_path / "x", {"k": "v"})
    file = open_tensors(tmp_path / "x")
    assert file.tensors["tokens"].tolist() == list(range(6)) and file.metadata == {"k": "v"}


def test_empty_dataset_opens(tmp_path):
    write(tmp_path, samples=[])
    assert len(Dataset.open(tmp_path)) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), max_size=40))
def test_anchors_equal_the_rule_written_as_a_loop(mask):
    want = 0
    for t in range(len(mask) - 1):
        if mask[t] and mask[t + 1]:
            want += 1
    assert count_anchors(np.array(mask, dtype=np.uint8)) == want


def i32(*values):
    return np.array(values, dtype=np.int32)


BAD_INDEX = [  # what is altered, what the message says
    ({"tokens": None}, {}, "want tensor 'tokens'"),
    ({"tokens": np.array([4, 2, 6])}, {}, "tokens: want dtype I32"),
    ({"tokens": i32(4, 2)}, {}, r"tokens: want shape \[3\], got \[2\]"),
    ({"tokens": i32(4, 2, 5)}, {}, "want samples over 12 tokens, got 11"),
    ({"tokens": i32(4, 0, 6)}, {}, r"tokens\[1\]: 0"),
    ({"offset": np.array([0, 5, 6])}, {}, r"offset\[1\]: 5"),
    ({"offset": np.array([1, 4, 6])}, {}, r"offset\[0\]: 1"),
    ({"supervised": i32(5, 1, 4)}, {}, r"supervised\[0\]: 5"),
    ({"anchors": i32(3, 0, 2)}, {}, r"anchors\[0\]: 3"),
    ({"anchors": i32(2, -1, 2)}, {}, r"anchors\[1\]: -1"),
    ({"source": i32(0, 1, 2)}, {}, r"source\[2\]: 2"),
    ({}, {"format": "dflash-runner-index/2"}, "format: want 'dflash-runner-index/1'"),
    ({}, {"sources": None}, "sources: missing"),
    ({}, {"sources": "{}"}, "sources: want a list, got dict"),
    ({}, {"sources": "[1, 2]"}, "sources: want a list of names"),
    ({}, {"skipped": "["}, "skipped: "),
    ({}, {"skipped": '[{"file": "x"}]'}, "skipped: "),
    ({}, {"data_bytes": "-1"}, "data_bytes: want a count"),
    ({}, {"data_bytes": "77"}, "want 77 bytes as index.safetensors says"),
    ({}, {"data_sha256": "XY"}, "data_sha256: want 64 hex digits"),
]


@pytest.mark.parametrize(("tensors", "metadata", "message"), BAD_INDEX)
def test_bad_index_is_refused_with_file_and_field(tmp_path, tensors, metadata, message):
    write(tmp_path)
    rewrite(tmp_path / "index.safetensors", metadata, **tensors)
    with pytest.raises(FileError, match=message) as info:
        Dataset.open(tmp_path)
    assert str(tmp_path) in str(info.value)


BAD_COUNTS = [
    ({"anchors": i32(1, 0, 2)}, r"anchors\[0\]: want 2, got 1"),
    ({"supervised": i32(3, 2, 4)}, r"supervised\[1\]: want 1, got 2"),
]


@pytest.mark.parametrize(("tensors", "message"), BAD_COUNTS)
def test_verify_recounts(tmp_path, tensors, message):
    write(tmp_path)
    rewrite(tmp_path / "index.safetensors", **tensors)
    with pytest.raises(FileError, match=message):
        Dataset.open(tmp_path).verify()


def test_verify_notices_one_flipped_bit(tmp_path):
    write(tmp_path)
    path = tmp_path / "data.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    data = Dataset.open(tmp_path)
    with pytest.raises(FileError, match="want sha256"):
        data.verify()


def test_missing_directory_and_file(tmp_path):
    with pytest.raises(FileError, match="no such directory") as info:
        Dataset.open(tmp_path / "none")
    assert info.value.hint
    write(tmp_path)
    (tmp_path / "data.safetensors").unlink()
    with pytest.raises(FileError, match=r"data\.safetensors: No such file"):
        Dataset.open(tmp_path)


def raw_file(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + body


def entry(**fields) -> bytes:
    return json.dumps({"x": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]} | fields}).encode()


BAD_FILES = [
    (b"", "got 0 bytes"),
    (b"\xff" * 64, "header: want at most"),
    (raw_file(b"{"), "header: "),
    (raw_file(b"[]"), "header: want a map"),
    (raw_file(entry(), b"a"), "want 2 bytes in the file"),
    (raw_file(entry(), b"abc"), "bytes, got"),
    (raw_file(entry(dtype="F8"), b"ab"), "dtype: want one of"),
    (raw_file(entry(shape=[3]), b"ab"), "want 3 bytes"),
    (raw_file(entry(shape=[-1]), b"ab"), "shape: want counts"),
    (raw_file(entry(data_offsets=[2, 0]), b"ab"), "data_offsets: want"),
    (raw_file(entry(data_offsets=[1, 3]), b"abc"), "want data_offsets from 0"),
    (raw_file(b'{"__metadata__": {"a": 1}}'), "want a map of strings"),
]


@pytest.mark.parametrize(("raw", "message"), BAD_FILES)
def test_bad_safetensors_is_refused(tmp_path, raw, message):
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    with pytest.raises(FileError, match=message):
        open_tensors(path)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80))
def test_random_bytes_never_escape_as_another_error(tmp_path_factory, raw):
    path = tmp_path_factory.getbasetemp() / "fuzz"
    path.write_bytes(raw_file(raw))
    try:
        open_tensors(path)
    except FileError:
        pass


def test_prompts_round_trip_and_checks(tmp_path):
    path = tmp_path / "prompts.safetensors"
    prompts = np.arange(12).reshape(3, 4)
    write_prompts(path, prompts)
    assert read_prompts(path).tolist() == prompts.tolist()
    write_tensors(path, {"tokens": i32(1, 2)}, {"format": "dflash-runner-prompts/1"})
    with pytest.raises(FileError, match="tokens: want shape"):
        read_prompts(path)
    write_tensors(path, {"tokens": np.zeros((0, 4), np.int32)}, {"format": "dflash-runner-prompts/1"})
    with pytest.raises(FileError, match="at least one prompt"):
        read_prompts(path)
    write_tensors(path, {"tokens": np.zeros((1, 4), np.int32)}, {})
    with pytest.raises(FileError, match=r"format: want"):
        read_prompts(path)
