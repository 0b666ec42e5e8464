"""Two drafters on two GPUs: gradients summed over NCCL while the backward goes on, and a death in between.

Run alone: `python -m pytest -m gpu python/tests/test_reduce_gpu.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from test_flex_gpu import VOCABULARY
from worker_host import PYTHON

HIDDEN = 2048  # of `reduce_rank`'s drafter
DEADLINE_S = 60.0

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


class Rank:
    """One drafter's process."""

    def __init__(self, directory: Path, rank: int) -> None:
        self.number = rank
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
        self.process = subprocess.Popen(
            [sys.executable, str(PYTHON / "tests" / "reduce_rank.py"), str(directory), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ
            | {
                "CUDA_VISIBLE_DEVICES": gpus[rank],
                "PYTHONPATH": os.pathsep.join([str(PYTHON), os.environ.get("PYTHONPATH", "")]),
                "TORCHINDUCTOR_CACHE_DIR": str(directory / "kernels"),
                "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
                "NCCL_CUMEM_ENABLE": "0",
                "NCCL_NVLS_ENABLE": "0",
                "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
                "TORCH_NCCL_ENABLE_MONITORING": "0",
                "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
            },
        )

    def tell(self, order: str) -> None:
        """Give an order."""
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The next answer."""
        line = self.process.stdout.readline()
        assert line, f"rank {self.number} ended with {self.process.wait(DEADLINE_S)}: its error stands above"
        return json.loads(line)

    def end(self) -> None:
        """Kill it, which changes nothing where it is dead."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(DEADLINE_S)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[tuple[list[Rank], Callable[[int], Rank]]]:
    """Two ranks that have warmed up, and what starts another in the place of one."""
    embedding = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(0)).bfloat16()
    save_file({"model.embed_tokens.weight": embedding}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    (tmp_path / "groups").mkdir()
    ranks: list[Rank] = []

    def start(number: int) -> Rank:
        rank = Rank(tmp_path, number)
        ranks.append(rank)
        return rank

    try:
        yield [start(number) for number in range(2)], start
    finally:
        for rank in ranks:
            rank.end()


def both(ranks: list[Rank], order: str) -> list[dict[str, Any]]:
    """An order to both, and their answers."""
    for rank in ranks:
        rank.tell(order)
    return [rank.hear() for rank in ranks]


def train(ranks: list[Rank], steps: int) -> list[list[dict[str, Any]]]:
    """Steps that end alike on both ranks."""
    told = [both(ranks, f"step {step}") for step in range(steps)]
    for one, other in told:
        assert one["finite"] and other["finite"]
        assert (one["bits"], one["digest"], one["begun"]) == (other["bits"], other["digest"], other["begun"])
    return told


def test_buckets_are_summed_in_the_backward_and_replicas_stay_equal(
    started: tuple[list[Rank], Callable[[int], Rank]],
) -> None:
    """Three steps, the last with a weightless place; then one sum of the same gradient, and the trace."""
    ranks, _ = started
    ready = [rank.hear() for rank in ranks]
    assert ready[0] == ready[1]
    both(ranks, "join 1")
    told = train(ranks, 3)
    assert len({step[0]["digest"] for step in told} | {ready[0]["digest"]}) == 4
    sums = told[0][0]["begun"]
    assert sums >= 6
    assert [[rank["early"] for rank in step] for step in told] == [
        [sums - 1, sums - 1],
        [sums - 1, sums - 1],
        [sums - 1, 0],
    ]
    for answer in both(ranks, "same 3"):
        assert answer == {"early": sums - 1, "moved": True, "equal": True, "any": True}
    for answer in both(ranks, "trace 4"):
        print(answer)  # noqa: T201
        assert answer["sums"] >= sums and answer["beside"] > 10
    train(ranks, 1)


def test_a_death_between_buckets_leaves_the_survivor_clean(
    started: tuple[list[Rank], Callable[[int], Rank]],
) -> None:
    """Some sums are done and the rest in flight: the survivor drops them, and trains with a replacement."""
    ranks, start = started
    ready = [rank.hear() for rank in ranks]
    both(ranks, "join 1")
    ranks[1].tell("part 0")
    ranks[0].tell("step 0")
    assert ranks[1].hear() == {"still": True}
    ranks[1].end()
    ranks[0].tell("abort")
    told = ranks[0].hear()
    assert told["kind"] == "unavailable" and "it was aborted" in told["refused"], told
    ranks[0].tell("drop 0")
    assert ranks[0].hear() == {"summing": True, "clean": True, "digest": ready[0]["digest"]}
    ranks = [ranks[0], start(1)]
    assert ranks[1].hear() == ready[1]
    both(ranks, "join 2")
    assert train(ranks, 3)[0][0]["early"] > 0
