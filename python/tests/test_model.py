"""The drafter as a module: names, initial weights, captured layers, and that it learns."""

from __future__ import annotations

import pytest
import torch
from dflash_runner import loss
from dflash_runner.attention import sdpa
from dflash_runner.errors import WorkerError
from dflash_runner.model import Drafter, target_layer_ids
from dflash_runner.optim import AdamWConfig, Optimiser
from numerics import drafter_config, make_head, random_row


@pytest.mark.parametrize("layers", [1, 5])
def test_there_are_three_tensors_and_eleven_a_layer(layers: int) -> None:
    assert len(Drafter(drafter_config(layers=layers)).state_dict()) == 3 + 11 * layers


def test_initial_weights_follow_from_seed_and_name_alone() -> None:
    small = Drafter(drafter_config(layers=2)).initialise(7).state_dict()
    torch.manual_seed(99)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        large = Drafter(drafter_config(layers=3)).initialise(7).state_dict()
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(tensor, large[name]) for name, tensor in small.items())
    other = Drafter(drafter_config(layers=2)).initialise(8).state_dict()
    assert not any(torch.equal(small[name], other[name]) for name in small if small[name].ndim == 2)
    spread = small["layers.0.self_attn.q_proj.weight"].std()
    assert float(spread) == pytest.approx(0.5 * 32**-0.5, rel=0.1)
    assert not torch.equal(small["layers.0.mlp.gate_proj.weight"], small["layers.0.mlp.up_proj.weight"])


def test_initialising_leaves_the_global_generator_alone() -> None:
    drafter = Drafter(drafter_config())
    before = torch.random.get_rng_state()
    drafter.initialise(1)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("layers", "count", "want"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (64, 5, (1, 16, 31, 46, 61)),
        (6, 3, (1, 2, 3)),
        (10, 1, (5,)),
    ],
)
def test_captured_layers_follow_the_published_rule(layers: int, count: int, want: tuple[int, ...]) -> None:
    assert target_layer_ids(layers, count=count) == want


def test_too_few_target_layers_are_refused() -> None:
    with pytest.raises(WorkerError, match="want at least 6 target layers for 3 ids, got 4"):
        target_layer_ids(4, count=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 1}, "block_size: want at least 2, got 1"),
        ({"mask_token_id": 61}, "mask_token_id: want an id below vocab_size 61, got 61"),
        ({"kv_heads": 3}, "heads: want a multiple of kv_heads 3, got 4"),
        ({"target_layer_ids": (1, 6)}, "target_layer_ids: want rising ids from 0 to 5"),
        ({"target_layer_ids": (2, 1)}, "target_layer_ids: want rising ids"),
        ({"target_layer_ids": ()}, "target_layer_ids: want at least one layer"),
        ({"layers": 0}, "layers: want a positive number, got 0"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(WorkerError, match=message):
        drafter_config(**change)


def test_a_drafter_overfits_one_batch() -> None:
    config = drafter_config()
    rows, head = random_row(config, seed=6), make_head(config)
    drafter = Drafter(config).initialise(0)
    optimiser = Optimiser(drafter, config=AdamWConfig(beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.0))
    blocks = loss.blocks(rows, block_size=config.block_size, mask_token_id=config.mask_token_id, gamma=4.0)
    attend = sdpa(blocks.rule, dtype=torch.float32)
    losses = []
    for _ in range(120):
        optimiser.clear()
        terms = loss.terms(drafter, head=head, hidden_BSC=rows.hidden_BSC, blocks=blocks, attend=attend)
        value = terms.numerator_B.sum() / terms.denominator_B.sum()
        value.backward()
        optimiser.clip(optimiser.global_norm(), limit=1.0)
        optimiser.step(lr=1e-2)
        losses.append(value.item())
    assert losses[0] > 3.0
    assert losses[-1] < 0.05
    assert torch.equal(terms.hits_BJ, terms.labels_BJ)
    assert int(terms.accepted_B) == config.block_size * int(terms.blocks_B)
