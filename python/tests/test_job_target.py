"""The corpus, the byte tokenizer, the embedded target and its answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from dflash_runner.corpus import read_corpus, stdlib_files
from dflash_runner.data import read_prompts
from dflash_runner.decode import plain
from dflash_runner.job.answers import decode, draw_windows
from dflash_runner.job.models import load_target
from dflash_runner.job.regenerate import regenerate
from dflash_runner.job.v1 import job_pb2
from dflash_runner.tensorfile import FileError
from dflash_runner.tokenizer import BYTE_VOCABULARY, load_tokenizer, tokenizer_digest
from jobs import Memory, corpus, make_target


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("built") / "target"
    make_target(directory)
    return directory


def regenerate_job(directory: Path, target: Path, **fields) -> job_pb2.Regenerate:
    small = {
        "corpus": corpus(),
        "samples": 6,
        "heldout_samples": 3,
        "prompt_tokens": 8,
        "new_tokens": 10,
        "batch": 4,
        "seed": 2,
        "dtype": "float32",
        "eval_prompts": 5,
        "eval_prompt_tokens": 12,
    }
    return job_pb2.Regenerate(directory=str(directory), target_directory=str(target), **(small | fields))


def samples(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_stdlib_corpus_is_split_by_file_and_fixed():
    one = read_corpus("python-stdlib", max_bytes=200_000, heldout_every=4)
    two = read_corpus("python-stdlib", max_bytes=200_000, heldout_every=4)
    assert one == two
    train, heldout = ({d.source for d in part} for part in (one.train, one.heldout))
    assert train and heldout and not train & heldout
    assert len(heldout) == -(-(len(train) + len(heldout)) // 4)
    assert all(d.text.isascii() for d in one.train + one.heldout)
    names = [name for name, _ in stdlib_files()]
    assert not [n for n in names if {"test", "tests", "site-packages"} & set(n.split("/")[:-1])]
    assert read_corpus("python-stdlib", max_bytes=100_000, heldout_every=4).digest != one.digest


def test_files_corpus_reads_every_kind(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffé one".encode())
    (tmp_path / "b.md").write_text("two")
    lines = [
        {"text": "t"},
        {"prompt": "p", "response": "r"},
        {"messages": [{"role": "user", "content": "m"}]},
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    files = [str(tmp_path / name) for name in ("a.txt", "b.md", "c.jsonl")]
    got = read_corpus("files", files=files, heldout_every=3)
    assert [d.text for d in got.heldout] == ["é one"]
    assert [(d.text, d.line) for d in got.train] == [("two", 0), ("t", 1), ("pr", 2), ("m", 3)]


BAD_CORPORA = [  # settings, the file's name and bytes, message
    ({"source": "web"}, None, b"", "want python-stdlib or files, got 'web'"),
    ({"heldout_every": 1}, None, b"", "heldout_every: want at least 2"),
    ({"source": "python-stdlib", "files": ["x"]}, None, b"", "files: want none"),
    ({}, "x.txt", b"a\nb\xff", r"want UTF-8, got byte 0xff at byte 3 \(line 2\)"),
    ({}, "x.txt", b"", "nothing to train on"),
    ({}, "x.bin", b"a", "want a file ending in"),
    ({}, "x.jsonl", b"{", r"x\.jsonl:1: "),
    ({}, "x.jsonl", b'{"text": "a"}\n[1]', r"x\.jsonl:2: want an object with text"),
]


@pytest.mark.parametrize(("settings", "name", "raw", "message"), BAD_CORPORA)
def test_bad_corpus_is_refused(tmp_path, settings, name, raw, message):
    files = []
    if name:
        (tmp_path / "good.txt").write_text("good")
        (tmp_path / name).write_bytes(raw)
        files = [str(tmp_path / "good.txt"), str(tmp_path / name)]
    settings = {"source": "files", "files": files, "heldout_every": 2} | settings
    source = settings.pop("source")
    with pytest.raises(FileError, match=message):
        read_corpus(source, **settings)


def test_tokenizer_knows_every_byte(target):
    tokenizer = load_tokenizer(target)
    assert len(tokenizer) == BYTE_VOCABULARY == 259
    text = "def f(x):\n\treturn 'é☃'  # 1.5\r\n" + "".join(map(chr, range(1, 128)))
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(text.encode()), "one token a byte"
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.mask_token_id) == (0, 1, 2)
    assert len({*tokenizer(bytes(range(256)).decode("latin1"), add_special_tokens=False)["input_ids"]}) > 127


def test_missing_tokenizer_is_named(tmp_path):
    with pytest.raises(FileError, match="no such target directory"):
        tokenizer_digest(tmp_path / "none")
    with pytest.raises(FileError, match="want a tokenizer") as info:
        load_tokenizer(tmp_path)
    assert "save_pretrained" in info.value.hint
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FileError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_target_is_a_real_model_with_its_facts(target):
    model = load_target(target, dtype="float32")
    assert type(model).__name__ == "Qwen3ForCausalLM" and not model.training
    facts = json.loads((target / "target.json").read_text())
    assert facts["parameters"] == sum(p.numel() for p in model.parameters())
    assert 0.02 < facts["heldout_top1"] <= 1 and facts["heldout_loss"] < 5.0, "better than ln 259 = 5.6"
    assert model.config.vocab_size == 259 and not model.config.tie_word_embeddings
    assert sorted(p.name for p in target.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "target.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_target_is_the_same_bit_for_bit_and_another_under_another_seed(target, tmp_path):
    make_target(tmp_path / "again")
    make_target(tmp_path / "other", seed=4)
    want = (target / "model.safetensors").read_bytes()
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == want
    assert (tmp_path / "again" / "target.json").read_bytes() == (target / "target.json").read_bytes()
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != want
    with pytest.raises(FileError, match="want fingerprint"):
        make_target(tmp_path / "again", seed=4)


BAD_TARGETS = [
    ({"layers": 0}, "layers: want more than 0"),
    ({"heads": 3, "kv_heads": 2}, "heads: want a multiple of kv_heads 2, got 3"),
    ({"head_dim": 7}, "head_dim: want an even number, got 7"),
    ({"weight_decay": -1.0}, "weight_decay: want at least 0"),
    ({"directory": ""}, "directory: missing"),
    ({"sequence": 10_000_000}, "want more than 10000001 training tokens"),
    ({"learning_rate": 1e30, "steps": 41}, "loss is nan"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_TARGETS)
def test_bad_target_leaves_nothing(tmp_path, fields, message):
    with pytest.raises(FileError, match=message):
        make_target(**({"directory": tmp_path / "t"} | fields))
    assert not list(tmp_path.iterdir())


def test_answers_are_the_targets_own_and_sets_are_disjoint(target, tmp_path):
    memory = Memory()
    job = regenerate_job(tmp_path / "r", target)
    regenerate(job, threads=1, reporter=memory)
    assert memory.figures["samples"] == 6 and memory.figures["prompts"] == 5
    model, tokenizer = load_target(target, dtype="float32"), load_tokenizer(target)
    text = read_corpus("python-stdlib", max_bytes=60_000, heldout_every=3)
    documents = {
        name: [tokenizer(d.text, add_special_tokens=False)["input_ids"] for d in part]
        for name, part in (("train", text.train), ("heldout", text.heldout))
    }
    for name in ("train", "heldout"):
        for sample in samples(tmp_path / "r" / f"{name}.jsonl"):
            prompt, answer = sample["tokens"][:8], sample["tokens"][8:]
            assert sample["loss_mask"] == [0] * 8 + [1] * len(answer)
            assert any(inside(prompt, ids) for ids in documents[name])
            want = plain(model, prompt_P=torch.tensor(prompt), new_tokens=10).tokens
            assert list(want[: len(answer)]) == answer and (len(answer) == 10 or answer[-1] == 0)
    prompts = read_prompts(tmp_path / "r" / "prompts.safetensors")
    assert prompts.shape == (5, 12)
    assert [p["tokens"] for p in samples(tmp_path / "r" / "prompts.jsonl")] == prompts.tolist()
    held = [s["tokens"][:8] for s in samples(tmp_path / "r" / "heldout.jsonl")]
    for prompt in prompts.tolist():
        assert any(inside(prompt, ids) for ids in documents["heldout"])
        assert not any(prompt[-8:] == other for other in held)


def inside(part: list[int], whole: list[int]) -> bool:
    return any(whole[i : i + len(part)] == part for i in range(len(whole) - len(part) + 1))


def test_regeneration_is_deterministic_and_found_again(target, tmp_path):
    for name in ("a", "b", "a"):
        regenerate(regenerate_job(tmp_path / name, target, temperature=0.7), threads=1, reporter=Memory())
    for name in ("train.jsonl", "heldout.jsonl", "prompts.safetensors", "regenerate.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    memory = Memory()
    regenerate(regenerate_job(tmp_path / "a", target, temperature=0.7), threads=1, reporter=memory)
    assert memory.facts["reused"] == "true" and memory.figures["samples"] == 6
    with pytest.raises(FileError, match="want fingerprint"):
        regenerate(regenerate_job(tmp_path / "a", target), threads=1, reporter=memory)


def test_batches_do_not_change_greedy_answers(target):
    model = load_target(target, dtype="float32")
    prompts = torch.randint(3, 259, (3, 6), generator=torch.Generator().manual_seed(0))
    draws = torch.Generator()
    together = decode(model, prompts, new_tokens=6, temperature=0.0, draws=draws)
    alone = [decode(model, p[None], new_tokens=6, temperature=0.0, draws=draws)[0] for p in prompts]
    assert together.tolist() == [a.tolist() for a in alone]


def test_windows_stay_in_their_document_and_are_distinct():
    documents = [np.arange(0, 10), np.arange(100, 103), np.arange(200, 206)]
    draws = torch.Generator().manual_seed(1)
    windows = draw_windows(documents, count=10, tokens=4, apart=1, draws=draws).tolist()
    assert len({tuple(w) for w in windows}) == 10
    assert all(w == list(range(w[0], w[0] + 4)) and not 100 <= w[0] < 200 for w in windows)
    apart = draw_windows(documents, count=3, tokens=4, apart=4, draws=draws).tolist()
    assert sorted(w[0] for w in apart) == [0, 4, 200], "disjoint"
    with pytest.raises(FileError, match="want 11 windows of 4 tokens, got 10"):
        draw_windows(documents, count=11, tokens=4, apart=1, draws=draws)


BAD_REGENERATIONS = [
    ({"samples": 0}, "samples: want at least 1"),
    ({"temperature": -1.0}, "temperature: want at least 0"),
    ({"eval_prompt_tokens": 0}, "want both it and eval_prompts or neither"),
    ({"dtype": "int8"}, "dtype: want one of"),
    ({"heldout_samples": 10_000_000}, "windows of 12 tokens"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_REGENERATIONS)
def test_bad_regeneration_leaves_nothing(target, tmp_path, fields, message):
    with pytest.raises(FileError, match=message):
        regenerate(regenerate_job(tmp_path / "r", target, **fields), threads=1, reporter=Memory())
    assert not list(tmp_path.iterdir())
