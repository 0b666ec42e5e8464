"""Exporting an image and evaluating it, with a random drafter: lossless whatever it guesses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from dflash_runner.data_writer import write_prompts
from dflash_runner.errors import WorkerError
from dflash_runner.job.evaluate import evaluate
from dflash_runner.job.export import export
from dflash_runner.job.v1 import job_pb2
from dflash_runner.model import Drafter
from dflash_runner.tensorfile import FileError
from dflash_runner.worker.v1 import worker_pb2
from jobs import Memory, make_target
from safetensors.torch import load_file, save_file

PROMPTS = [[10, 20, 30, 40], [50, 60, 70, 80], [90, 100, 110, 120]]


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("built") / "target"
    make_target(directory, layers=5)
    return directory


def export_job(directory: Path, image: Path, **fields) -> job_pb2.Export:
    drafter = {
        "layers": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 16,
        "vocab_size": 259,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "block_size": 4,
        "mask_token_id": 2,
        "target_layers": 5,
        "max_position_embeddings": 256,
    }
    return job_pb2.Export(
        directory=str(directory),
        image=str(image),
        drafter=worker_pb2.Drafter(**(drafter | fields)),
        target=worker_pb2.Target(layer_ids=[1, 2]),
    )


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """A drafter's directory, made by the job from an image's masters."""
    from dflash_runner.building import drafter_config

    directory = tmp_path_factory.mktemp("exported")
    job = export_job(directory / "drafter", directory / "image.safetensors")
    drafter = Drafter(drafter_config(job.drafter, job.target)).initialise(7)
    save_file({f"masters.{n}": p.detach() for n, p in drafter.named_parameters()}, job.image)
    memory = Memory()
    export(job, threads=1, reporter=memory)
    assert memory.figures["tensors"] == 3 + 2 * 11
    assert memory.figures["parameters"] == sum(p.numel() for p in drafter.parameters())
    return directory / "drafter"


def evaluate_job(drafter: Path, target: Path, prompts: Path, **fields) -> job_pb2.Evaluate:
    return job_pb2.Evaluate(
        drafter_directory=str(drafter),
        target_directory=str(target),
        prompts=str(prompts),
        **({"new_tokens": 12, "dtype": "float32"} | fields),
    )


def test_a_random_drafter_is_lossless_and_gains_little(exported, target, tmp_path):
    write_prompts(tmp_path / "p.safetensors", torch.tensor(PROMPTS).numpy())
    memory = Memory()
    evaluate(evaluate_job(exported, target, tmp_path / "p.safetensors"), threads=1, reporter=memory)
    figures = memory.figures
    assert figures["prompts"] == figures["lossless"] == 3
    assert 1.0 <= figures["acceptance"] < 4.0
    assert figures["looping_share"] == pytest.approx(1 - figures["nonlooping_prompts"] / 3)
    assert figures["speedup"] == pytest.approx(figures["tokens_per_s"] / figures["plain_tokens_per_s"])
    assert memory.stages[-1] == ("evaluate", 3, 3)


def test_prompts_as_lines_are_the_same_prompts(exported, target, tmp_path):
    write_prompts(tmp_path / "p.safetensors", torch.tensor(PROMPTS).numpy())
    lines = [{"tokens": PROMPTS[0]}, {"tokens": PROMPTS[1]}, {"prompt": "def f"}, {"text": "x = "}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    figures = []
    for name in ("p.safetensors", "p.jsonl"):
        memory = Memory()
        job = evaluate_job(exported, target, tmp_path / name, prompt_count=2)
        evaluate(job, threads=1, reporter=memory)
        figures.append({k: v for k, v in memory.figures.items() if not k.endswith(("_s", "up"))})
    assert figures[0] == figures[1] and figures[0]["prompts"] == 2
    memory = Memory()
    evaluate(evaluate_job(exported, target, tmp_path / "p.jsonl"), threads=1, reporter=memory)
    assert memory.figures["prompts"] == memory.figures["lossless"] == 4


BAD = [  # the prompts file, settings, message
    ("", {}, "want at least one prompt"),
    ("{", {}, r"p\.jsonl:1: "),
    ("{}", {}, "want a prompt"),
    ('{"tokens": []}', {}, "want a prompt"),
    ('{"tokens": [259]}', {}, "want ids below 259, got 259"),
    ('{"messages": []}', {}, "want a prompt"),
    ('{"text": "x"}', {"prompt_count": 2}, "prompt_count: want at most 1, got 2"),
    ('{"text": "x"}', {"new_tokens": 0}, "new_tokens: missing"),
    ('{"text": "x"}', {"dtype": "int8"}, "dtype: want one of"),
]


@pytest.mark.parametrize(("text", "fields", "message"), BAD)
def test_bad_prompts_are_refused(exported, target, tmp_path, text, fields, message):
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(FileError, match=message):
        evaluate(evaluate_job(exported, target, tmp_path / "p.jsonl", **fields), threads=1, reporter=Memory())


def test_a_drafter_of_another_target_is_refused(exported, tmp_path):
    make_target(tmp_path / "other", layers=6, steps=1)
    (tmp_path / "p.jsonl").write_text('{"text": "x"}')
    with pytest.raises(FileError, match="num_target_layers: want the target's 6, got 5") as info:
        evaluate(
            evaluate_job(exported, tmp_path / "other", tmp_path / "p.jsonl"), threads=1, reporter=Memory()
        )
    assert "another target" in info.value.hint


def test_an_image_of_another_shape_is_refused(exported, tmp_path):
    image = exported.parent / "image.safetensors"
    with pytest.raises(WorkerError, match="export drafter"):
        export(export_job(tmp_path / "x", image, layers=3), threads=1, reporter=Memory())
    job = export_job(tmp_path / "x", image)
    job.dtype = "int8"
    with pytest.raises(FileError, match="dtype: want bfloat16 or float32, got 'int8'"):
        export(job, threads=1, reporter=Memory())
    with pytest.raises(FileError, match="image: missing"):
        export(job_pb2.Export(directory=str(tmp_path / "x")), threads=1, reporter=Memory())
    with pytest.raises(FileError, match="there already"):
        export(export_job(exported, image), threads=1, reporter=Memory())
    assert not list(tmp_path.iterdir())


def test_weights_have_the_dtype_that_was_asked_for(exported, tmp_path):
    image = exported.parent / "image.safetensors"
    masters = {n.removeprefix("masters."): t for n, t in load_file(image).items()}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16), ("", torch.bfloat16)):
        job = export_job(tmp_path / f"as-{name}", image)
        job.dtype = name
        export(job, threads=1, reporter=Memory())
        written = load_file(tmp_path / f"as-{name}" / "model.safetensors")
        assert written.keys() == masters.keys()
        assert all(torch.equal(written[n], masters[n].to(dtype)) for n in masters)
