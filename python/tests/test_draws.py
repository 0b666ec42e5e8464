"""Several draws of anchors from one produced row: each counts as a row of its own, and is told as one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from dflash_runner import config
from dflash_runner.communicator import Communicator
from dflash_runner.drafter import DrafterRole
from dflash_runner.figures import RowLoss
from dflash_runner.preparation import Prepared
from dflash_runner.trainer import Trainer
from dflash_runner.warmup_drafter import DrafterSubject
from dflash_runner.worker.faults import NAN, Faults
from worker_host import BUCKETS, configuration, make_inputs

DRAWS = 3


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a target."""
    made = tmp_path_factory.mktemp("draws")
    make_inputs(made)
    return made


def trainer_of(directory: Path, draws: int) -> Trainer:
    """With as many draws of a row."""
    message = configuration(directory)
    message.training.anchors = 7
    message.training.draws_per_row = draws if draws != 1 else 0
    message.training.weight_constant *= draws
    return Trainer(config.from_message(message))


def prepared(trainer: Trainer, directory: Path, draws: range) -> list[Prepared]:
    """Draws of one row in which each document leaves most of its places out."""
    subject = DrafterSubject(trainer, configuration=config.from_message(configuration(directory)))
    tensors, pieces = subject._row(BUCKETS[0])  # noqa: SLF001
    few = [type(p)(p.sample, p.draw, p.start, p.tokens, 2) for p in pieces]
    return [trainer.prepare(tensors, epoch=1, pieces=few, draw=draw) for draw in draws]


def test_draws_of_a_row_differ_and_repeat(directory: Path) -> None:
    """Each draw is its own, the same every time; the first of a run with one draw is as it always was."""
    trainer = trainer_of(directory, DRAWS)
    assert trainer.draws == DRAWS
    rows = prepared(trainer, directory, range(DRAWS))
    chosen = [tuple(row.blocks.rule.anchors_BN[0].tolist()) for row in rows]
    assert len(set(chosen)) == DRAWS
    assert [row.anchors for row in rows] == [rows[0].anchors] * DRAWS
    again = prepared(trainer_of(directory, DRAWS), directory, range(DRAWS))
    assert [tuple(row.blocks.rule.anchors_BN[0].tolist()) for row in again] == chosen
    (only,) = prepared(trainer_of(directory, 1), directory, range(1))
    assert tuple(only.blocks.rule.anchors_BN[0].tolist()) == chosen[0]


def test_draws_add_up_as_rows_do(directory: Path) -> None:
    """One row of three draws is told as one row; gradient and weight are those of three rows."""
    alone = Communicator("", number=1, world=1, rank=0)
    trainer, other = trainer_of(directory, DRAWS), trainer_of(directory, DRAWS)
    for row in prepared(trainer, directory, range(DRAWS)):
        trainer.micro_step(row, row=5)
    for number, row in enumerate(prepared(other, directory, range(DRAWS))):
        other.micro_step(row, row=number + 1)
    got, apart = trainer.reduce(alone), other.reduce(alone)
    assert torch.equal(trainer.optimiser.gradient_P, other.optimiser.gradient_P)
    assert (got.weight, got.norm) == (apart.weight, apart.norm)
    assert len(apart.rows) == DRAWS
    want = RowLoss(
        row=5,
        numerator=sum(r.numerator for r in apart.rows),
        denominator=sum(r.denominator for r in apart.rows),
    )
    assert got.rows == (want,)


class Recorded:
    """A trainer that writes down what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, int, bool, object]] = []

    def micro_step(self, prepared: object, *, row: int, poison: bool, communicator: object) -> None:
        self.asked.append((prepared, row, poison, communicator))

    def reduce(self, communicator: object) -> object:
        return communicator

    def settle(self) -> None:
        pass


@pytest.mark.parametrize("last", [False, True])
def test_only_the_last_draw_of_a_step_is_summed_beside(last: bool) -> None:
    """The sum may begin in one backward alone."""
    role, trainer = object.__new__(DrafterRole), Recorded()
    held = SimpleNamespace(prepared=("first", "second", "third"), row=9)
    role._trainer = trainer  # type: ignore[assignment]
    role._faults = Faults(f"*:train:1:{NAN}")
    role._buffers = SimpleNamespace(take=lambda _: held, release=lambda _: None)  # type: ignore[assignment]
    order = SimpleNamespace(step=3, row=9, last=last)
    got, figures = role._micro_step(order, "peers")  # type: ignore[arg-type]
    assert got is held
    assert figures == ("peers" if last else None)
    assert trainer.asked == [
        ("first", 9, True, None),
        ("second", 9, True, None),
        ("third", 9, True, "peers" if last else None),
    ]


def test_one_draw_may_be_left_unsaid(directory: Path) -> None:
    """As configurations of runs from before say nothing of it."""
    message = configuration(directory)
    assert config.from_message(message).training.draws_per_row == 1
    message.training.draws_per_row = 2
    assert config.from_message(message).training.draws_per_row == 2
