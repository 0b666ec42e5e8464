"""What a step of another trainer costs, run from a checkout of it.

`python peer.py '{"trainer": "specforge", "checkout": DIR, "shape": {...}, "rows": 20, "batch": 1, ...}'`, as
`bench peer` asks it (cmd/internal/bench/peer.go), beside step.py in a process of its own. Whatever a trainer
prints goes to stderr. The interpreter may be another than ours: of our packages only errors is imported.

A step is the trainer's: forward of B rows with its own anchors, mask and noise, backward, clipping,
optimiser. The first is timed from a still device to a still device, and what it compiles is in it; then some
that follow one another, and some alone. How many tokens the noise's embedding and the head were given is
counted in the first, so that another number of blocks than was asked for is an error and no figure.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import peer_deepspec
import peer_specforge
import told
import torch
from dflash_runner.errors import Kind, WorkerError
from peer_checkout import version_of
from peer_trainer import Asked, Trainer
from peer_watch import Seen
from torch import nn

TRAINERS: dict[str, Callable[[Asked], Trainer]] = {
    "specforge": peer_specforge.build,
    "deepspec": peer_deepspec.build,
}
_UNTIMED = 3  # steps, the first among them


def say(phase: str) -> None:
    """Tell how far it is: the last of it is what is known of a process that hangs."""
    sys.stderr.write(f"peer: {phase}\n")
    sys.stderr.flush()


def step(trainer: Trainer) -> torch.Tensor:
    """One whole step; the loss."""
    try:
        loss = trainer.loss()
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            got = type(loss).__name__
            raise WorkerError(Kind.NOT_FOUND, f"read loss of the trainer: want one number, got {got}")
        loss.backward()
        trainer.update()
    except Exception as error:
        raise trainer.failed("run a step", error) from error
    return loss.detach()


def settle(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds from a still device to a still device."""
    settle(device)
    begun = time.perf_counter()
    work()
    settle(device)
    return time.perf_counter() - begun


@contextmanager
def counted(trainer: Trainer, *, hidden: int) -> Iterator[dict[str, int]]:
    """How many tokens the embedding and the head are given meanwhile."""
    seen = {"noise": 0, "head": 0}

    def noise(_module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        seen["noise"] += given[0].numel()

    def head(_module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        seen["head"] += given[0].numel() // hidden

    hooks = [
        trainer.embedding.register_forward_pre_hook(noise),
        trainer.head.register_forward_pre_hook(head),
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def first(trainer: Trainer, asked: Asked, device: torch.device) -> tuple[float, dict[str, str]]:
    """Seconds of the first step, and what was counted in it.

    Raises:
        WorkerError: invalid, where the trainer ran another number of blocks; internal, for no finite loss.
    """
    losses: list[torch.Tensor] = []
    if asked.compile:  # a hook would be compiled with the rest
        seconds, seen = timed(lambda: losses.append(step(trainer)), device), {}
    else:
        with counted(trainer, hidden=asked.shape.hidden) as seen:
            seconds = timed(lambda: losses.append(step(trainer)), device)
    if not math.isfinite(loss := float(losses[0])):
        raise WorkerError(Kind.INTERNAL, f"read first loss of the trainer: want a number, got {loss}")
    if not seen:
        return seconds, {"noise embedding": "not counted: compiled", "head": "not counted: compiled"}
    slots = asked.batch * asked.shape.anchors * asked.shape.block
    if seen["noise"] != slots:
        raise WorkerError(
            Kind.INVALID,
            f"count blocks of a step: want {asked.batch} rows of {asked.shape.anchors} blocks of "
            f"{asked.shape.block}, {slots} tokens embedded, got {seen['noise']}",
            hint="can the trainer draw so many anchors from so few tokens? fewer --anchors, or more --tokens",
        )
    return seconds, {
        "noise embedding": f"{seen['noise'] // asked.batch} tokens a row, in the step",
        "head": f"{seen['head'] // asked.batch} slots a row (what is computed again counts again)",
    }


def peak_bytes(device: torch.device) -> int:
    """The most memory held: of torch's allocator on a GPU since the last reset, of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def use(asked: Asked) -> torch.device:
    """The device of this process.

    Raises:
        WorkerError: not_found, where torch finds no GPU.
    """
    device = torch.device(asked.device)
    torch.set_num_threads(asked.threads)
    torch.manual_seed(1)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            built = torch.version.cuda or "none"
            raise WorkerError(
                Kind.NOT_FOUND,
                f"use device cuda: want a GPU, got none with torch {torch.__version__} (CUDA {built}) of "
                f"{sys.executable}",
            )
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
    return device


def measure(question: dict[str, Any]) -> dict[str, Any]:
    """Everything, of one trainer."""
    asked = Asked.told(question)
    device = use(asked)
    say("import and build")
    begun = time.perf_counter()
    seen = Seen()
    trainer = TRAINERS[asked.trainer](asked)
    settle(device)
    build_s = time.perf_counter() - begun
    say("first step")
    first_s, counts = first(trainer, asked, device)
    for _ in range(_UNTIMED - 1):
        say("untimed steps")
        step(trainer)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    say("timed steps")
    steps, before = asked.rows // asked.batch, seen.compiles
    following_s = timed(lambda: [step(trainer) for _ in range(steps)], device) / steps
    compiles = seen.compiles - before
    alone_s = sorted(timed(lambda: step(trainer), device) for _ in range(steps))[steps // 2]
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "triton": version_of("triton"),
        "transformers": version_of("transformers"),
        "parameters": sum(one.numel() for one in trainer.model.parameters() if one.requires_grad),
        "build_s": build_s,
        "first_s": first_s,
        "step_ms": following_s * 1e3,
        "alone_ms": alone_s * 1e3,
        "peak_bytes": peak_bytes(device),
        "compiles": -1 if seen.compiles < 0 else compiles,
        "dense_calls": seen.dense_calls,
        "parts": trainer.parts | counts | {"optimiser": _optimiser(trainer)},
    }


def _optimiser(trainer: Trainer) -> str:
    """What is known of the copies of the parameters that it updates."""
    masters = sorted({str(one.dtype).removeprefix("torch.") for one in trainer.masters})
    return f"on {' and '.join(masters)} masters" if masters else "on what it does not tell"


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")  # of this script alone
    os.dup2(2, 1)
    told.answer(measure, out=answers)
