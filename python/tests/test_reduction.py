"""Sums over the ranks bucket by bucket: their order, their bits, and their end by an abort, over real gloo.

gloo's sums run on threads of their own, so they are begun early here as NCCL's are on GPUs.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_runner import communicator, loss
from dflash_runner.attention import sdpa
from dflash_runner.communicator import Communicator
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.flat import lay_out
from dflash_runner.optim import Optimiser
from dflash_runner.reduction import Reduction
from dflash_runner.update import AdamWConfig
from numerics import drafter_config, make_drafter, make_head, random_row
from torch import nn

CONFIG = drafter_config(layers=3)
ADAMW = AdamWConfig(beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.01)
W0, BUCKET_BYTES, BUCKETS = 16.0, 12_000, 8  # buckets of matrices; the rest is summed last
DEADLINE_S, STUCK_S = 150, 15
STEPS, MICRO = 3, 2
WEIGHTLESS = {(1, 1, 1), (1, 2, 0), (1, 2, 1)}  # (rank, step, micro-step) without a row


class Early(Communicator):
    """Sums begun early, and noted by their sizes; after `last` of them the group is aborted."""

    overlaps = True

    def __init__(self, directory: str, *, number: int, world: int, rank: int, last: int = 1 << 30) -> None:
        super().__init__(directory, number=number, world=world, rank=rank)
        self.begun: list[int] = []
        self._last = last

    def begin(self, values: torch.Tensor) -> None:
        if len(self.begun) == self._last:
            self.abort()
        super().begin(values)
        self.begun.append(len(values))


class Plain(Communicator):
    """One sum, as on every CPU; noted likewise."""

    def __init__(self, directory: str, *, number: int, world: int, rank: int) -> None:
        super().__init__(directory, number=number, world=world, rank=rank)
        self.begun: list[int] = []

    def begin(self, values: torch.Tensor) -> None:
        super().begin(values)
        self.begun.append(len(values))


class Drafter:
    """A drafter with its optimiser, trained as `Trainer` does."""

    def __init__(self, *, dtype: torch.dtype = torch.float32) -> None:
        torch.set_num_threads(1)
        self.model = make_drafter(CONFIG).to(dtype)
        self.optimiser = Optimiser(self.model, config=ADAMW, bucket_bytes=BUCKET_BYTES)

    def micro_step(self, seed: int) -> None:
        """Forward and backward of a row."""
        rows = random_row(CONFIG, seed=seed)
        blocks = loss.blocks(
            rows, block_size=CONFIG.block_size, mask_token_id=CONFIG.mask_token_id, gamma=4.0
        )
        attend = sdpa(blocks.rule, dtype=torch.float32)
        terms = loss.terms(
            self.model, head=make_head(CONFIG), hidden_BSC=rows.hidden_BSC, blocks=blocks, attend=attend
        )
        (terms.numerator_B.sum() / W0).backward()
        with torch.no_grad():
            self.optimiser.weight.add_(terms.denominator_B.sum())

    def step(self, number: int, communicator: Any) -> dict[str, Any]:
        """A step; its norm, and how many sums had begun when the last backward ended."""
        self.optimiser.clear()
        for micro in range(MICRO):
            if (communicator.rank, number, micro) in WEIGHTLESS:
                continue
            if micro == MICRO - 1:
                self.optimiser.sum_as_it_comes(communicator)
            self.micro_step(100 * number + 10 * communicator.rank + micro)
        early = len(communicator.begun)
        self.optimiser.sum(communicator)
        self.optimiser.rescale(W0)
        norm = self.optimiser.global_norm()
        self.optimiser.clip(norm, limit=1.0)
        self.optimiser.step(lr=1e-3)
        begun, communicator.begun = communicator.begun, []
        return {"norm": float(norm), "early": early, "begun": begun}

    def masters(self) -> dict[str, list[float]]:
        """The masters, by name."""
        return {name: tensor.flatten().tolist() for name, tensor in self.optimiser.masters().items()}


def trains(rank: int, directory: str, done: Barrier) -> Any:
    """The same steps, summed bucket by bucket and at once."""
    told = {}
    for number, kind in enumerate((Early, Plain), start=1):
        communicator, drafter = kind(directory, number=number, world=2, rank=rank), Drafter()
        communicator.open()
        steps = [drafter.step(step, communicator) for step in range(STEPS)]
        told[kind.__name__] = {"steps": steps, "masters": drafter.masters()}
        done.wait()
        communicator.close()
    return told


def aborts(rank: int, directory: str, done: Barrier) -> Any:
    """Rank 1 ends the group after three buckets, in its backward; both drop the step and train it again.

    With several sums under way gloo now and then tells one of them nothing of its connections' end, and
    its waiting is then ended by its timeout alone. A run on a CPU has one sum under way at a time, and a
    supervisor whose deadline ends a worker that does not answer an abort.
    """
    patient, communicator.SUM_TIMEOUT = communicator.SUM_TIMEOUT, timedelta(seconds=STUCK_S)
    first = Early(directory, number=1, world=2, rank=rank, last=3 if rank == 1 else 1 << 30)
    drafter, told = Drafter(), {}
    first.open()
    try:
        drafter.step(0, first)
    except WorkerError as err:
        told = {"kind": err.kind.label, "message": err.message, "begun": len(first.begun)}
    told["open"] = drafter.optimiser.is_summing
    first.close()
    communicator.SUM_TIMEOUT = patient
    drafter.optimiser.clear()
    told["left"] = bool(drafter.optimiser.gradient_P.any())
    told["open_after"] = drafter.optimiser.is_summing
    second = Early(directory, number=2, world=2, rank=rank)
    second.open()
    told["steps"] = [drafter.step(step, second) for step in range(STEPS)]
    told["masters"] = drafter.masters()
    done.wait()
    second.close()
    return told


def run_rank(scene: Callable[..., Any], rank: int, directory: str, done: Barrier) -> None:
    """What a spawned rank does."""
    Path(directory, f"rank-{rank}.json").write_text(json.dumps(scene(rank, directory, done)))


def play(scene: Callable[..., Any], directory: Path) -> list[Any]:
    """What two spawned ranks tell."""
    context = multiprocessing.get_context("spawn")
    done = context.Barrier(2)
    ranks = [context.Process(target=run_rank, args=(scene, r, str(directory), done)) for r in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(DEADLINE_S)
        process.kill()  # nothing where it ended; a rank whose peer died would wait for ever
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
    return [json.loads((directory / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Two ranks that trained both ways."""
    return play(trains, tmp_path_factory.mktemp("trained"))


def test_all_ranks_begin_the_same_sums_in_the_same_order(trained: list[Any]) -> None:
    """Also where a rank's last place, or its whole step, is weightless: then nothing is begun early."""
    layout = lay_out(dict(make_drafter(CONFIG).named_parameters()), bucket_bytes=BUCKET_BYTES)
    sizes = [bucket.high - bucket.low for bucket in layout.buckets]
    want = [*sizes, layout.total - layout.decayed + layout.alignment]
    assert len(want) == BUCKETS + 1
    steps = [rank["Early"]["steps"] for rank in trained]
    for one, other in zip(*steps, strict=True):
        assert one["begun"] == other["begun"] == want
    assert [step["early"] for step in steps[0]] == [BUCKETS] * STEPS  # all but the last, in the backward
    assert [step["early"] for step in steps[1]] == [BUCKETS, 0, 0]
    assert [[len(step["begun"]) for step in rank["Plain"]["steps"]] for rank in trained] == [[1] * STEPS] * 2


def test_buckets_and_one_sum_give_the_same_bits(trained: list[Any]) -> None:
    """Of two ranks; and both ranks hold the same."""
    assert trained[0]["Early"]["masters"] == trained[1]["Early"]["masters"] == trained[0]["Plain"]["masters"]
    norms = [
        [step["norm"] for step in rank[kind]["steps"]] for rank in trained for kind in ("Early", "Plain")
    ]
    assert norms == [norms[0]] * 4 and all(norms[0])


def test_an_abort_between_buckets_drops_the_step_and_the_next_group_trains_it(
    tmp_path: Path, trained: list[Any]
) -> None:
    """The error comes out of the backward as it is; nothing of what was half summed is left."""
    told = play(aborts, tmp_path)
    for rank in told:
        assert rank["kind"] == Kind.UNAVAILABLE.label and rank["open"] and not rank["open_after"]
        assert not rank["left"]
        assert rank["masters"] == trained[0]["Early"]["masters"]
    assert "sum over peers of communicator 1: it was aborted" in told[1]["message"]
    assert told[1]["begun"] == 3
    assert "sum over peers of communicator 1: a peer is gone" in told[0]["message"]


class Noted:
    """What a reduction asks of its communicator, noted; nothing is summed."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def begin(self, values: torch.Tensor) -> None:
        self.calls.append(len(values))

    def finish(self) -> None:
        self.calls.append("finish")


def noted() -> tuple[Reduction, Noted, list[tuple[str, ...]]]:
    """A reduction of a drafter's gradient, and its buckets' names."""
    layout = lay_out(dict(make_drafter(CONFIG).named_parameters()), bucket_bytes=BUCKET_BYTES)
    reduction = Reduction(torch.zeros(layout.total + layout.alignment), layout)
    return reduction, Noted(), [bucket.names for bucket in layout.buckets]


def test_a_bucket_waits_for_those_before_it() -> None:
    """Whatever order gradients come in, sums begin in the one order that all ranks share."""
    reduction, seen, names = noted()
    reduction.open(seen)
    for bucket in reversed(names[1:]):
        for name in bucket:
            reduction.arrived(name)
    assert seen.calls == []
    reduction.arrived("norm.weight")  # in no bucket
    for name in names[0]:
        reduction.arrived(name)
    assert len(seen.calls) == len(names) and "finish" not in seen.calls
    reduction.finish(seen)
    assert len(seen.calls) == len(names) + 2 and seen.calls[-1] == "finish"
    assert not reduction.is_open


def test_a_gradient_that_comes_twice_is_a_bug_that_is_told() -> None:
    """Its bucket may have been summed without the second."""
    reduction, seen, names = noted()
    reduction.arrived(names[0][0])  # nothing is open
    reduction.open(seen)
    reduction.arrived(names[0][0])
    with pytest.raises(AssertionError, match=f"{names[0][0]} came twice"):
        reduction.arrived(names[0][0])
    with pytest.raises(AssertionError, match="want none open"):
        reduction.open(seen)
    with pytest.raises(AssertionError, match="that it was opened with"):
        reduction.finish(Noted())
    reduction.drop()
    assert not reduction.is_open and seen.calls == []


def test_a_parameter_without_a_gradient_holds_its_bucket_back_to_the_end() -> None:
    """And counts as zero, whatever its place held before."""
    drafter = Drafter(dtype=torch.bfloat16)
    sum(parameter.sum() * float("nan") for parameter in drafter.model.parameters()).backward()
    assert drafter.optimiser.gradient_P.isnan().any()
    drafter.optimiser.clear()
    communicator = Early("", number=1, world=1, rank=0)
    drafter.optimiser.sum_as_it_comes(communicator)
    used: list[nn.Parameter] = [drafter.model.fc.weight, drafter.model.norm.weight]
    sum(parameter.float().sum() for parameter in used).backward()
    assert communicator.begun == []
    drafter.optimiser.sum(communicator)
    assert len(communicator.begun) == BUCKETS + 1
    total = sum(parameter.numel() for parameter in used)
    assert float(drafter.optimiser.gradient_P.sum()) == total
    assert float(drafter.optimiser.global_norm()) == pytest.approx(total**0.5)
