"""Two ranks with half the rows each train as one rank with all: one sum, then W0 over the weight."""

from __future__ import annotations

import json
import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
import torch
from dflash_runner import loss
from dflash_runner.attention import sdpa
from dflash_runner.communicator import Communicator
from dflash_runner.loss import Rows
from dflash_runner.optim import AdamWConfig, Optimiser
from numerics import drafter_config, make_drafter, make_head, random_row

CONFIG = drafter_config()
W0 = 16.0
DEADLINE_S = 150
STEPS, ROWS = 3, 4  # rows of a step; the second rank's last place is weightless in the last step


def rows_of(step: int) -> list[Rows | None]:
    """A step's rows; None is a weightless place."""
    rows: list[Rows | None] = [random_row(CONFIG, seed=100 * step + i) for i in range(ROWS)]
    return [*rows[:-1], None] if step == STEPS - 1 else rows


def add(optimiser: Optimiser, drafter: torch.nn.Module, rows: Rows | None) -> float:
    """One micro-step; its loss numerator."""
    if rows is None:
        return 0.0
    blocks = loss.blocks(rows, block_size=CONFIG.block_size, mask_token_id=CONFIG.mask_token_id, gamma=4.0)
    attend = sdpa(blocks.rule, dtype=torch.float32)
    terms = loss.terms(
        drafter, head=make_head(CONFIG), hidden_BSC=rows.hidden_BSC, blocks=blocks, attend=attend
    )
    (terms.numerator_B.sum() / W0).backward()
    optimiser.weight.add_(terms.denominator_B.sum())
    return float(terms.numerator_B.detach().sum())


def train(communicator: Communicator) -> tuple[dict[str, list[float]], list[list[float]]]:
    """Masters, and per step [numerator, weight, norm]."""
    torch.set_num_threads(1)
    drafter = make_drafter(CONFIG)
    config = AdamWConfig(beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.01)
    optimiser, figures = Optimiser(drafter, config=config), []
    for step in range(STEPS):
        optimiser.clear()
        share = ROWS // communicator.world
        mine = rows_of(step)[communicator.rank * share :][:share]
        numerator = sum(add(optimiser, drafter, rows) for rows in mine)
        communicator.sum(optimiser.gradient_P)
        optimiser.rescale(W0)
        norm = optimiser.global_norm()
        optimiser.clip(norm, limit=1.0)
        optimiser.step(lr=1e-3)
        figures.append([numerator, float(optimiser.weight), float(norm)])
    return {name: m.flatten().tolist() for name, m in optimiser.masters().items()}, figures


def run_rank(rank: int, directory: str, done: Barrier) -> None:
    """What a spawned rank does; neither leaves before both are done."""
    communicator = Communicator(directory, number=1, world=2, rank=rank)
    communicator.open()
    Path(directory, f"rank-{rank}.json").write_text(json.dumps(train(communicator)))
    done.wait()
    communicator.close()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[dict, list]]:
    """What two spawned ranks end with."""
    directory = tmp_path_factory.mktemp("communicators")
    context = multiprocessing.get_context("spawn")
    done = context.Barrier(2)
    ranks = [context.Process(target=run_rank, args=(r, str(directory), done)) for r in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(DEADLINE_S)
        process.kill()  # nothing where it ended; a rank whose peer died would wait for ever
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
    return {rank: json.loads((directory / f"rank-{rank}.json").read_text()) for rank in range(2)}


def test_two_ranks_with_half_the_rows_equal_one_with_all(two_ranks: dict[int, tuple[dict, list]]) -> None:
    masters, figures = train(Communicator("", number=1, world=1, rank=0))
    for name, want in masters.items():
        got = torch.tensor(two_ranks[0][0][name])
        torch.testing.assert_close(got, torch.tensor(want), rtol=1e-5, atol=1e-5, msg=name)
    for step, (numerator, weight, norm) in enumerate(figures):
        both = [two_ranks[rank][1][step] for rank in range(2)]
        assert both[0][0] + both[1][0] == pytest.approx(numerator, rel=1e-5)
        assert both[0][1] == pytest.approx(weight, rel=1e-6)
        assert both[0][2] == pytest.approx(norm, rel=1e-5)


def test_ranks_hold_the_same_bits(two_ranks: dict[int, tuple[dict, list]]) -> None:
    assert two_ranks[0][0] == two_ranks[1][0]
    assert [f[1:] for f in two_ranks[0][1]] == [f[1:] for f in two_ranks[1][1]]


def test_averaging_the_ranks_means_would_differ(two_ranks: dict[int, tuple[dict, list]]) -> None:
    """The halves weigh unequally, so the test above tells a true sum from a mean of means."""
    first = rows_of(0)
    drafter = make_drafter(CONFIG)
    optimiser = Optimiser(drafter, config=AdamWConfig(beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.0))
    means = []
    for half in (first[:2], first[2:]):
        optimiser.clear()
        numerator = sum(add(optimiser, drafter, rows) for rows in half)
        means.append(numerator / float(optimiser.weight))
    numerator = sum(two_ranks[rank][1][0][0] for rank in range(2))
    true = numerator / two_ranks[0][1][0][1]
    assert abs(sum(means) / 2 - true) > 1e-3


def test_a_weightless_place_adds_exactly_zeros() -> None:
    drafter = make_drafter(CONFIG)
    optimiser = Optimiser(drafter, config=AdamWConfig(beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.0))
    add(optimiser, drafter, None)
    assert not optimiser.gradient_P.any()
    empty = random_row(CONFIG, seed=1)
    add(
        optimiser,
        drafter,
        Rows(
            hidden_BSC=empty.hidden_BSC,
            tokens_BS=empty.tokens_BS,
            loss_mask_BS=empty.loss_mask_BS,
            documents_BS=empty.documents_BS,
            anchors_BN=empty.anchors_BN,
            keep_BN=torch.zeros_like(empty.keep_BN),
        ),
    )
    assert not optimiser.gradient_P.any()  # a row of padding places is as good as none
