"""Preparation: every format, what is left out and why, and bad input by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dflash_runner.data import Dataset, read_prompts
from dflash_runner.job.prepare import prepare
from dflash_runner.job.samples import most_bytes
from dflash_runner.job.v1 import job_pb2
from dflash_runner.tensorfile import FileError
from dflash_runner.tokenizer import load_tokenizer, tokenizer_digest, write_byte_tokenizer
from jobs import Memory

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token if m.role == 'assistant' else '' }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
MARKED = TEMPLATE.replace(
    "{{ m.content }}{{ eos_token if m.role == 'assistant' else '' }}",
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}",
)
CHAT = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo hi"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "ok"},
]


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("target")
    write_byte_tokenizer(directory)
    return directory


def templated(directory: Path, template: str) -> Path:
    tokenizer = write_byte_tokenizer(directory)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return directory


def run(directory: Path, target: Path, files: dict[str, Any], **fields: Any) -> tuple[Dataset, Memory]:
    """Prepares files, given as text or as lines of a .jsonl file."""
    directory.mkdir(exist_ok=True)
    names = []
    for name, content in files.items():
        path = directory / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else "\n".join(map(json.dumps, content)))
        names.append(str(path))
    settings = {"max_tokens": 64, "block_size": 4, "format": "auto", "minimum_tokens": 2} | fields
    job = job_pb2.Prepare(
        directory=str(directory / "data"), target_directory=str(target), files=names, **settings
    )
    memory = Memory()
    prepare(job, reporter=memory)
    return Dataset.open(directory / "data"), memory


def text(target: Path, data: Dataset, sample: int, *, supervised: bool = False) -> str:
    """A sample's text, or the supervised part of it."""
    tokens, mask = data.sample(sample)
    ids = [int(t) for t, m in zip(tokens, mask, strict=True) if m or not supervised]
    return load_tokenizer(target).decode(ids)


def test_every_format_in_one_file(tmp_path, target):
    lines = [
        {"tokens": [5, 6, 7], "loss_mask": [0, 1, 1]},
        {"prompt": "one ", "response": "two"},
        {"text": "three"},
    ]
    data, memory = run(tmp_path, target, {"a.jsonl": lines, "b.txt": "é", "c.py": "x = 1\n", "d.md": "# d"})
    assert [text(target, data, i, supervised=True) for i in range(1, 6)] == [
        "two<|endoftext|>",
        "three",
        "é",
        "x = 1\n",
        "# d",
    ]
    assert data.sample(0)[0].tolist() == [5, 6, 7] and data.sample(0)[1].tolist() == [0, 1, 1]
    assert text(target, data, 1) == "one two<|endoftext|>"
    assert data.source.tolist() == [0, 0, 0, 1, 2, 3]
    assert [Path(s).name for s in data.sources] == ["a.jsonl", "b.txt", "c.py", "d.md"]
    assert data.tokenizer_digest == tokenizer_digest(target) and data.digest == memory.facts["data_sha256"]
    assert memory.warnings == [] and memory.figures["samples"] == 6
    data.verify()


@pytest.mark.parametrize("template", [TEMPLATE, MARKED])
def test_chat_supervises_the_assistant_alone(tmp_path, template):
    target = templated(tmp_path / "t", template)
    data, _ = run(tmp_path, target, {"a.jsonl": [{"messages": CHAT}]})
    assert text(target, data, 0) == "<user>hi<assistant>yo hi<|endoftext|><user>hi<assistant>ok<|endoftext|>"
    assert text(target, data, 0, supervised=True) == "yo hi<|endoftext|>ok<|endoftext|>"


def test_what_is_left_out_is_recorded_with_its_reason(tmp_path, target):
    lines = [
        {"text": "a"},  # one token
        {"tokens": [5, 6, 7, 8], "loss_mask": [1, 0, 1, 0]},  # no two supervised tokens in a row
        {"text": "x" * 70},  # longer than a row
        {"prompt": "p" * 64, "response": "cut off whole"},  # cut: nothing supervised is left
    ]
    data, memory = run(tmp_path, target, {"a.jsonl": lines, "empty.txt": ""})
    assert len(data) == 3 and data.anchors.tolist() == [0, 63, 0] and data.tokens.tolist() == [4, 64, 64]
    assert [(Path(s.source).name, s.line, s.reason) for s in data.skipped] == [
        ("a.jsonl", 1, "1 tokens, shorter than 2"),
        ("empty.txt", 0, "0 tokens, shorter than 2"),
    ]
    assert memory.figures == {
        "samples": 3,
        "tokens": 132,
        "supervised": 66,
        "without_anchor": 2,
        "skipped": 2,
        "cut": 2,
    }
    skipped, unanchored, cut = memory.warnings
    assert "2 documents skipped" in skipped and "a.jsonl:1: 1 tokens" in skipped
    assert "2 samples without a valid anchor" in unanchored and "a.jsonl:2" in unanchored
    assert "2 samples cut to 64 tokens" in cut and "a.jsonl:3 has 70" in cut


BAD_FILES = [  # files, settings, message
    ({}, {}, "nothing to train on: want at least one file"),
    ({"a.txt": ""}, {}, "nothing to train on: 1 documents in 1 files"),
    ({"a.jsonl": [{"tokens": [5, 6], "loss_mask": [0, 1]}]}, {}, "none of 1 samples has a valid anchor"),
    ({"a.txt": b"ok\n\xe9"}, {}, r"a\.txt: want UTF-8, got byte 0xe9 at byte 3 \(line 2\)"),
    ({"a.csv": "x"}, {}, r"a\.csv: want a file ending in"),
    ({"a.jsonl": "{}\n"}, {}, r"a\.jsonl:1: want the keys"),
    ({"a.jsonl": '{"text": "ok"}\n{'}, {}, r"a\.jsonl:2: "),
    ({"a.jsonl": "[1]"}, {}, r"a\.jsonl:1: want an object, got list"),
    ({"a.jsonl": [{"text": 5}]}, {}, r"a\.jsonl:1: text: want a str, got int"),
    ({"a.jsonl": [{"text": "x"}]}, {"format": "tokens"}, "tokens: want a list, got nothing"),
    ({"a.jsonl": [{"tokens": [1, 2], "loss_mask": [1]}]}, {}, "loss_mask: want 2 entries"),
    ({"a.jsonl": [{"tokens": [1, 2], "loss_mask": [1, 2]}]}, {}, "loss_mask: want 0 or 1"),
    ({"a.jsonl": [{"tokens": [1, 2.5], "loss_mask": [1, 1]}]}, {}, "tokens: want whole numbers"),
    ({"a.jsonl": [{"tokens": [1, 259], "loss_mask": [1, 1]}]}, {}, "want ids below 259, got 259"),
    ({"a.jsonl": [{"tokens": [1, -1], "loss_mask": [1, 1]}]}, {}, "want ids below 259, got -1"),
    ({"a.jsonl": [{"messages": CHAT}]}, {}, "no chat template"),
    ({"a.txt": "xx"}, {"format": "chat"}, r"format chat: want a \.jsonl file"),
    ({"a.txt": "xx"}, {"format": "pdf"}, "format: want one of"),
    ({"a.txt": "xx"}, {"block_size": 1}, "block_size: want at least 2"),
    ({"a.txt": "xx"}, {"minimum_tokens": 1}, "minimum_tokens: want at least 2"),
    ({"a.txt": "xx"}, {"max_tokens": 1}, "max_tokens: want at least minimum_tokens 2"),
]


@pytest.mark.parametrize(("files", "settings", "message"), BAD_FILES)
def test_bad_input_is_refused_and_leaves_nothing(tmp_path, target, files, settings, message):
    with pytest.raises(FileError, match=message):
        run(tmp_path, target, files, **settings)
    assert not (tmp_path / "data").exists() and not list(tmp_path.glob(".data*"))


def test_mistakes_are_gathered_up_to_twenty(tmp_path, target):
    files = {
        "a.jsonl": '{"text": "ok"}\n{\n{"text": 5}',
        "b.csv": "x",
        "c.jsonl": [{"tokens": [1, 259], "loss_mask": [1, 1]}],
    }
    with pytest.raises(FileError) as info:
        run(tmp_path, target, files)
    head, *told = str(info.value).split("\n")
    assert head == "prepare: 4 mistakes in the files:"
    for line, want in zip(
        told, ("a.jsonl:2: ", "a.jsonl:3: text: want a str", "b.csv: want", "c.jsonl:1: tok"), strict=True
    ):
        assert want in line
    with pytest.raises(FileError) as info:
        run(tmp_path / "many", target, {"a.jsonl": "{\n" * 30})
    head, *told = str(info.value).split("\n")
    assert head == "prepare: the first 20 mistakes in the files:"
    assert len(told) == 20 and "a.jsonl:20: " in told[-1]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_told_from_latin1(tmp_path, target, encoding):
    with pytest.raises(FileError, match="want UTF-8") as info:
        run(tmp_path, target, {"a.txt": "plain words\n".encode(encoding)})
    assert f"iconv -f {encoding[:6]}{encoding[7:]} -t utf-8" in info.value.hint
    with pytest.raises(FileError) as info:
        run(tmp_path / "l", target, {"a.txt": "caf\xe9".encode("latin1")})
    assert "iconv -f latin1" in info.value.hint


TOO_LONG = "x" * (most_bytes(64) - 1) + "é"


@pytest.mark.parametrize(
    ("files", "where"),
    [
        ({"a.jsonl": [{"text": "fine"}, {"text": TOO_LONG}]}, "a.jsonl:2"),
        ({"a.jsonl": [{"prompt": "p", "response": TOO_LONG}]}, "a.jsonl:1"),
        ({"a.jsonl": [{"messages": [{"role": "user", "content": TOO_LONG}]}]}, "a.jsonl:1"),
        ({"a.txt": TOO_LONG}, "a.txt"),
    ],
)
def test_a_text_far_too_long_is_refused_before_it_is_tokenised(tmp_path, files, where):
    target = templated(tmp_path / "t", TEMPLATE)
    with pytest.raises(FileError, match=rf"{where}: want at most {most_bytes(64)} bytes of text") as info:
        run(tmp_path, target, files)
    assert "split" in info.value.hint


def test_the_bound_on_text_grows_with_what_is_kept():
    assert most_bytes(64) == 4 << 20 and most_bytes(1 << 20) == 64 << 20


BAD_CHATS = [
    ([{"role": "user"}], r"messages\[0\]: want role and content"),
    ([{"role": "user", "content": None}], r"messages\[0\]: want role and content"),
]


@pytest.mark.parametrize(("messages", "message"), BAD_CHATS)
def test_bad_chat_is_refused(tmp_path, messages, message):
    target = templated(tmp_path / "t", TEMPLATE)
    with pytest.raises(FileError, match=message):
        run(tmp_path, target, {"a.jsonl": [{"messages": messages}]})


def test_template_that_refuses_or_rewrites_is_reported(tmp_path):
    refusing = templated(tmp_path / "t", "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(FileError, match=r"a\.jsonl:1: messages: roles must alternate"):
        run(tmp_path / "a", refusing, {"a.jsonl": [{"messages": CHAT}]})
    rewriting = templated(tmp_path / "u", TEMPLATE.replace("m.content }}{{", "m.content | upper }}{{"))
    with pytest.raises(FileError, match=r"messages\[1\]: want the turn") as info:
        run(tmp_path / "b", rewriting, {"a.jsonl": [{"messages": CHAT}]})
    assert "generation" in info.value.hint


def test_missing_and_doubled_files_and_no_tokenizer(tmp_path, target):
    job = job_pb2.Prepare(
        directory=str(tmp_path / "d"),
        target_directory=str(target),
        files=[str(tmp_path / "none.txt")],
        max_tokens=8,
        block_size=4,
        format="auto",
        minimum_tokens=2,
    )
    with pytest.raises(FileError, match=r"none\.txt: no such file"):
        prepare(job, reporter=Memory())
    (tmp_path / "none.txt").write_text("there now")
    job.files.append(job.files[0])
    with pytest.raises(FileError, match="named twice"):
        prepare(job, reporter=Memory())
    job.files.pop()
    job.target_directory = str(tmp_path)
    with pytest.raises(FileError, match="want a tokenizer"):
        prepare(job, reporter=Memory())


def test_equal_input_is_found_again_and_other_input_refused(tmp_path, target):
    files = {"a.txt": "some words"}
    first, _ = run(tmp_path, target, files)
    inode = (tmp_path / "data" / "data.safetensors").stat().st_ino
    again, memory = run(tmp_path, target, files)
    assert memory.facts["reused"] == "true" and again.digest == first.digest
    assert (tmp_path / "data" / "data.safetensors").stat().st_ino == inode
    with pytest.raises(FileError, match="want fingerprint"):
        run(tmp_path, target, {"a.txt": "other words"})


def test_evaluation_prompts_are_what_stands_before_the_answers(tmp_path, target):
    lines = [
        {"prompt": "ab", "response": "c"},  # shorter than three tokens
        {"prompt": "12345", "response": "c"},
        {"text": "a plain text"},  # no prompt: its beginning
        {"text": "abc"},  # nothing would follow
        {"prompt": "6789", "response": "c"},
        {"prompt": "not needed", "response": "c"},
    ]
    wanted = {"prompts": str(tmp_path / "deep" / "p.safetensors"), "eval_prompts": 3, "eval_prompt_tokens": 3}
    for _ in range(2):  # found again, and written again
        run(tmp_path, target, {"a.jsonl": lines}, **wanted)
        prompts = read_prompts(wanted["prompts"])
        assert [load_tokenizer(target).decode(p.tolist()) for p in prompts] == ["345", "a p", "789"]
        Path(wanted["prompts"]).unlink()
    with pytest.raises(FileError, match="want 9 evaluation prompts of 3 tokens, got 4 in 6 samples"):
        run(tmp_path / "b", target, {"a.jsonl": lines}, **(wanted | {"eval_prompts": 9}))
    with pytest.raises(FileError, match="prompts: want it with eval_prompts"):
        run(tmp_path / "c", target, {"a.jsonl": lines}, eval_prompts=9)
