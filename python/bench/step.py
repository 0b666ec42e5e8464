"""What one row costs a drafter on a GPU, beside the rate at which the same GPU multiplies matrices.

`python step.py ROWS`: prints a table to stderr and one JSON object to stdout. The drafter, its warm-up and
its steps are the worker's own; only the rows are made up, on the device, as a pull leaves them. A row is
timed from its anchors to the applied update, one row a step, and without the update.

The workload: a drafter of 5 layers on a target with hidden size 4,096 and a vocabulary of 151,936, rows of
3,072 tokens with 512 blocks of 16. `--scale` divides hidden size, vocabulary and rows, for a look at the
script itself.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from dflash_runner import config
from dflash_runner.communicator import Communicator
from dflash_runner.frames import Piece
from dflash_runner.trainer import Trainer
from dflash_runner.warmup import Clock, prepare_torch, warm_up
from dflash_runner.warmup_drafter import DrafterSubject
from dflash_runner.watch import Watch
from dflash_runner.worker.v1 import worker_pb2
from safetensors.torch import save_file

_CAPTURED = (1, 9, 17, 25, 33)
_LAYERS, _BLOCK, _HEAD = 5, 16, 128
_SIDE = 8192  # of the matrices whose product gives the rate


def message(directory: Path, *, scale: int, device: str) -> worker_pb2.Configuration:
    """The workload as a worker is told it."""
    hidden, tokens = 4096 // scale, 3072 // scale
    heads = hidden // _HEAD
    return worker_pb2.Configuration(
        role=worker_pb2.ROLE_DRAFTER,
        world_size=1,
        generation=1,
        device=device,
        threads=4,
        seed=1,
        attention="flex",
        target=worker_pb2.Target(directory=str(directory), dtype="bfloat16", layer_ids=list(_CAPTURED)),
        drafter=worker_pb2.Drafter(
            layers=_LAYERS,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            heads=heads,
            kv_heads=max(1, heads // 4),
            head_dim=_HEAD,
            vocab_size=151_936 // scale,
            rms_norm_eps=1e-6,
            rope_theta=1e6,
            block_size=_BLOCK,
            mask_token_id=151_936 // scale - 1,
            target_layers=36,
            max_position_embeddings=40_960,
        ),
        training=worker_pb2.Training(
            buckets=[tokens],
            anchors=512 // scale,
            rows_per_step=1,
            gamma=7.0,
            weight_constant=1000.0,
            beta1=0.9,
            beta2=0.95,
            epsilon=1e-8,
            clip_norm=1.0,
            compute_dtype="bfloat16",
        ),
        flex=worker_pb2.Flex(backend="triton"),
    )


def save_head(directory: Path, *, vocabulary: int, hidden: int) -> None:
    """A target that is no more than a tied embedding."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(vocabulary, hidden, generator=generator).mul_(0.02).to(torch.bfloat16)
    save_file({"model.embed_tokens.weight": rows}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"tie_word_embeddings": True}), encoding="utf-8")


def teraflop(shape: worker_pb2.Configuration) -> float:
    """What a row's matrix products come to, 1e12 operations: two a multiply-add, forward and backward.

    The noise goes through every layer (three products each for its linear maps: forward, to the input, to
    the weights), the context through fc (its input needs no gradient) and each layer's keys and values; the
    head is a product forward and one to the input; attention counts the visible pairs only, three forwards.
    """
    d, t = shape.drafter, shape.training
    tokens, queries = t.buckets[-1], t.anchors * d.block_size
    attention = d.hidden_size * d.head_dim * (2 * d.heads + 2 * d.kv_heads)
    layer = attention + 3 * d.hidden_size * d.intermediate_size
    noise = 6 * queries * d.layers * layer
    context = 4 * tokens * len(_CAPTURED) * d.hidden_size**2
    context += 6 * tokens * d.layers * 2 * d.hidden_size * d.kv_heads * d.head_dim
    head = 4 * t.anchors * (d.block_size - 1) * d.hidden_size * d.vocab_size
    visible = queries * (tokens / 2 + d.block_size)
    scores = 3 * 4 * d.layers * visible * d.heads * d.head_dim
    return (noise + context + head + scores) / 1e12


def rate() -> float:
    """TFLOP a second of one large product in bfloat16."""
    a, b = (torch.randn(_SIDE, _SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    return 2 * _SIDE**3 / timed(lambda: a @ b, rounds=20) / 1e9


def timed(work: Callable[[], object], *, rounds: int) -> float:
    """The median of some rounds, in milliseconds, each from a still device to a still device."""
    taken = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - start) * 1e3)
    return sorted(taken)[len(taken) // 2]


def rows_of(shape: worker_pb2.Configuration) -> Callable[[], dict[str, torch.Tensor]]:
    """A maker of rows of one document, every token supervised, hidden states on the device."""
    generator = torch.Generator("cuda").manual_seed(1)
    tokens, width = shape.training.buckets[-1], len(_CAPTURED) * shape.drafter.hidden_size
    vocabulary = shape.drafter.vocab_size

    def make() -> dict[str, torch.Tensor]:
        return {
            "hidden": torch.randn(tokens, width, device="cuda", generator=generator, dtype=torch.bfloat16),
            "tokens": torch.randint(
                vocabulary, (tokens,), device="cuda", generator=generator, dtype=torch.int32
            ),
            "loss_mask": torch.ones(tokens, device="cuda", dtype=torch.uint8),
            "documents": torch.zeros(tokens, device="cuda", dtype=torch.int32),
        }

    return make


def profile(work: Callable[[], object]) -> list[dict[str, object]]:
    """The kernels of one call that take longest."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    found = sorted(seen.key_averages(), key=lambda event: -event.self_device_time_total)[:25]
    return [
        {"kernel": e.key[:100], "ms": round(e.self_device_time_total / 1e3, 2), "calls": e.count}
        for e in found
    ]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=int)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        sys.stdout.write(json.dumps(measure(Path(name), asked)) + "\n")


def measure(directory: Path, asked: argparse.Namespace) -> dict[str, object]:
    """Everything, of one trainer that was warmed up as a worker is."""
    clock = Clock(time.perf_counter())
    shape = message(directory, scale=asked.scale, device="cuda:0")
    save_head(directory, vocabulary=shape.drafter.vocab_size, hidden=shape.drafter.hidden_size)
    clock.skip()
    configuration = config.from_message(shape)
    prepare_torch(configuration)
    trainer, watch = Trainer(configuration), Watch()
    clock.lap("build")
    certificate = warm_up(
        DrafterSubject(trainer, configuration=configuration),
        configuration=configuration,
        watch=watch,
        clock=clock,
        progress=lambda _: None,
    )
    tokens, anchors = shape.training.buckets[-1], shape.training.anchors
    pieces = [Piece(0, 0, 0, tokens, min(anchors, tokens - 1))]
    alone, make = Communicator("", number=1, world=1, rank=0), rows_of(shape)
    row = make()
    torch.cuda.reset_peak_memory_stats()

    def micro() -> None:
        trainer.micro_step(row, row=1, epoch=0, pieces=pieces)

    def whole() -> None:
        micro()
        trainer.reduce(alone)
        trainer.apply(lr=1e-5)

    for _ in range(3):
        whole()
    whole_ms = timed(whole, rounds=asked.rows)
    peak = torch.cuda.max_memory_allocated()
    micro_ms = timed(micro, rounds=asked.rows)
    trainer.drop()
    watch.check()
    gflops, work = rate(), teraflop(shape)
    found: dict[str, object] = {
        "bench": "step",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "S": tokens,
        "N": anchors,
        "block": _BLOCK,
        "vocabulary": shape.drafter.vocab_size,
        "parameters": sum(t.numel() for t in trainer.optimiser.masters().values()),
        "row_ms": round(micro_ms, 2),
        "step_of_one_row_ms": round(whole_ms, 2),
        "tokens_per_s": round(tokens / whole_ms * 1e3),
        "teraflop_a_row": round(work, 2),
        "matmul_tflops": round(gflops, 1),
        "share_of_matmul": round(work / gflops / whole_ms * 1e3, 3),
        "peak_gib": round(peak / 2**30, 2),
        "cache": certificate.cache,
        "seconds": {name: round(value, 2) for name, value in certificate.seconds.items()},
        "kernels": list(certificate.kernels),
    }
    if asked.profile:
        found["profile"] = profile(whole)
        for line in found["profile"]:
            sys.stderr.write(f"{line['ms']:9.2f} ms x{line['calls']:<5} {line['kernel']}\n")
    for name, value in found.items():
        if name != "profile":
            sys.stderr.write(f"{name:22} {value}\n")
    return found


if __name__ == "__main__":
    main()
