"""Which kernel options of attention and which chunk of the loss are quickest on the reference workload.

`python variants.py ROUNDS [--scale N]`: for each choice the median of some forwards and backwards, in
milliseconds, and the seconds that its first call took; prints them to stderr, and one JSON object to stdout.
The workload is that of step.py: one document, anchors drawn over all of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable

import torch
from dflash_runner.attention import Rule
from dflash_runner.config import FlexSettings
from dflash_runner.errors import WorkerError
from dflash_runner.flex import Flex
from dflash_runner.head import FrozenHead
from dflash_runner.kernels import kernels
from dflash_runner.loss import cross_entropy
from shape import Shape
from step import median_ms

FORWARD = (
    (128, 64, 8, 3),
    (128, 128, 8, 2),
    (128, 128, 8, 3),
    (128, 64, 4, 3),
    (128, 64, 8, 4),
    (64, 128, 4, 3),
)
"""(block_m, block_n, warps, stages)."""
BACKWARD = (
    (64, 128, 128, 64, 8, 3),
    (64, 128, 128, 64, 8, 2),
    (64, 64, 64, 64, 4, 3),
    (128, 128, 128, 128, 8, 2),
    (64, 128, 128, 64, 4, 2),
    (32, 128, 128, 32, 4, 3),
)
"""(block_m1, block_n1, block_m2, block_n2, warps, stages)."""
CHUNKS = (1, 2, 3, 4, 6)
"""Into how many chunks the slots of a row are cut."""


DEVICE = torch.device("cuda", 0)


def workload_w(scale: int) -> Shape:
    """The reference, as cmd/internal/bench/shape.go has it, its sizes divided; up to 8."""
    return Shape(
        tokens=3072 // scale,
        anchors=512 // scale,
        block=16,
        vocabulary=151_936 // scale,
        hidden=4096 // scale,
        intermediate=12_288 // scale,
        layers=5,
        captured=5,
        heads=32 // scale,
        kv_heads=max(1, 8 // scale),
        head_dim=128,
        dtype="bfloat16",
    )


def settings(forward: tuple[int, ...], backward: tuple[int, ...]) -> FlexSettings:
    """Of one choice."""
    m, n, warps, stages = forward
    m1, n1, m2, n2, backward_warps, backward_stages = backward
    return FlexSettings(
        block_m=m,
        block_n=n,
        warps=warps,
        stages=stages,
        backward_block_m1=m1,
        backward_block_n1=n1,
        backward_block_m2=m2,
        backward_block_n2=n2,
        backward_warps=backward_warps,
        backward_stages=backward_stages,
    )


def both_ways(forward: Callable[[], torch.Tensor], rounds: int) -> dict[str, float | str]:
    """Milliseconds of a forward and a backward, or why there are none."""
    held: list[torch.Tensor] = []

    def ahead() -> None:
        held[:] = [forward()]

    def back() -> None:
        held[0].backward(torch.ones_like(held[0]), retain_graph=True)

    start = time.perf_counter()
    try:
        ahead()
        back()
        torch.cuda.synchronize()
    except (RuntimeError, WorkerError) as error:  # it may ask for more shared memory than there is
        return {"failed": f"{type(error).__name__}: {error}"[:160]}
    first = time.perf_counter() - start
    return {
        "first_s": round(first, 2),
        "forward_ms": round(median_ms(ahead, device=DEVICE, rounds=rounds), 3),
        "backward_ms": round(median_ms(back, device=DEVICE, rounds=rounds), 3),
    }


def attention(scale: int, rounds: int) -> list[dict[str, object]]:
    """Each forward with the first backward, then each backward with the first forward."""
    shape = workload_w(scale)
    tokens, anchors = shape.tokens, shape.anchors
    generator = torch.Generator("cuda").manual_seed(0)
    places = torch.randperm(tokens - 1, generator=generator, device="cuda")[:anchors].sort().values
    rule = Rule(
        anchors_BN=places[None],
        keep_BN=torch.ones(1, anchors, dtype=torch.bool, device="cuda"),
        documents_BS=torch.zeros(1, tokens, dtype=torch.int64, device="cuda"),
        block_size=shape.block,
    )
    queries = anchors * shape.block
    sizes = [(shape.heads, queries), (shape.kv_heads, tokens + queries), (shape.kv_heads, tokens + queries)]
    drawn = [
        torch.randn(
            1, length, heads, shape.head_dim, generator=generator, device="cuda", dtype=torch.bfloat16
        )
        .transpose(1, 2)  # a token's heads side by side, as the drafter has them
        .requires_grad_()
        for heads, length in sizes
    ]
    choices = [(one, BACKWARD[0]) for one in FORWARD] + [(FORWARD[0], one) for one in BACKWARD[1:]]
    found = []
    for forward, backward in choices:
        attend = Flex(settings(forward, backward)).over(rule)
        found.append(
            {"forward": forward, "backward": backward, **both_ways(lambda a=attend: a(*drawn), rounds)}
        )
        print(found[-1], file=sys.stderr, flush=True)  # noqa: T201
    return found


def loss(scale: int, rounds: int) -> list[dict[str, object]]:
    """The head and the cross-entropy of a row, in so many chunks."""
    shape = workload_w(scale)
    slots = shape.anchors * (shape.block - 1)
    generator = torch.Generator("cuda").manual_seed(0)
    head_VD = torch.randn(
        shape.vocabulary, shape.hidden, generator=generator, device="cuda", dtype=torch.bfloat16
    ).mul_(0.02)
    hidden_RD = torch.randn(
        slots, shape.hidden, generator=generator, device="cuda", dtype=torch.bfloat16
    ).requires_grad_()
    labels_R = torch.randint(shape.vocabulary, (slots,), generator=generator, device="cuda")
    found = []
    for chunks in CHUNKS:
        plain = kernels()
        rows = -(-slots // chunks)
        by = dataclasses.replace(plain, score_bytes=rows * plain.logit_bytes * shape.vocabulary)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()

        def forward(by: object = by) -> torch.Tensor:
            return cross_entropy(
                hidden_RD,
                head=FrozenHead(embedding_VD=head_VD, head_VD=head_VD),
                labels_R=labels_R,
                weights_R=torch.ones(slots, device="cuda"),
                by=by,
            )[0]

        timing = both_ways(forward, rounds)
        peak = round((torch.cuda.max_memory_allocated() - before) / 2**30, 2)
        found.append({"chunks": chunks, "peak_gib": peak, **timing})
        print(found[-1], file=sys.stderr, flush=True)  # noqa: T201
    return found


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", type=int)
    parser.add_argument("--scale", type=int, default=1)
    asked = parser.parse_args()
    found = {
        "bench": "variants",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "loss": loss(asked.scale, asked.rounds),
        "attention": attention(asked.scale, asked.rounds),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
