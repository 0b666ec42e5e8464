"""The mask by tiles equals the mask by elements: rule, loops, torch's own way, and nothing in vain."""

from __future__ import annotations

import random
import tracemalloc

import pytest
import torch
from dflash_runner import tiles
from dflash_runner.attention import Rule
from dflash_runner.flex import block_mask
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, create_mask


def make_rule(*, seed: int, rows: int, length: int, anchors: int, block_size: int, documents: int) -> Rule:
    """Rows of documents with padding after them and, at times, between; anchors sorted, some padding.

    The places that come first and last in a row, in a document and in a tile are anchors more often
    than chance would have it. A padding place has the last anchor, as rows have it, or any.
    """
    chooser = random.Random(seed)
    ids, places, keep = [], [], []
    for _ in range(rows):
        cuts = sorted(chooser.sample(range(1, length), min(documents, length - 1)))
        starts = [0, *cuts]
        line: list[int] = []
        for number, (start, end) in enumerate(zip(starts, [*cuts, length], strict=True)):
            is_padding = number == len(starts) - 1 or chooser.random() < 0.15
            line += [-1 if is_padding and len(starts) > 1 else number] * (end - start)
        edges = {edge + by for edge in (*starts, *range(0, length, 128)) for by in (-1, 0, 1)}
        pool = [edge for edge in edges if 0 <= edge < length] + [length - 1]
        taken = [
            chooser.choice(pool) if chooser.random() < 0.3 else chooser.randrange(length)
            for _ in range(anchors)
        ]
        kept = chooser.randint(0, anchors) if chooser.random() < 0.7 else anchors
        sorted_ = sorted(taken[:kept])
        fill = sorted_[-1] if sorted_ and chooser.random() < 0.7 else chooser.randrange(length)
        ids.append(line)
        places.append(sorted_ + [fill] * (anchors - kept))
        keep.append([True] * kept + [False] * (anchors - kept))
    return Rule(
        anchors_BN=torch.tensor(places),
        keep_BN=torch.tensor(keep),
        documents_BS=torch.tensor(ids),
        block_size=block_size,
    )


def listed(count: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The tiles that a mask lists, bool [B,1,M,U], and each of them once, in rising order."""
    assert count.dtype == index.dtype == torch.int32
    dense = torch.zeros(index.shape, dtype=torch.bool)
    for at in torch.cartesian_prod(*map(torch.arange, count.shape)).tolist():
        chosen = index[*at, : count[*at]].tolist()
        assert chosen == sorted(set(chosen))
        dense[*at, chosen] = True
    return dense


def by_counting(mask_B1QX: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(some, all) of each tile, counted in the whole mask; what lies beyond it is not seen."""
    rows, _, queries, keys = mask_B1QX.shape
    size = tiles.SIZE
    padded = torch.zeros(rows, 1, -(-queries // size) * size, -(-keys // size) * size, dtype=torch.bool)
    padded[:, :, :queries, :keys] = mask_B1QX
    seen = padded.unflatten(3, (-1, size)).unflatten(2, (-1, size)).sum(dim=(3, 5))
    return seen > 0, seen == size * size


def check(rule: Rule) -> None:
    """Everything that a block mask may get wrong."""
    rows, length = rule.documents_BS.shape
    queries = rule.anchors_BN.shape[1] * rule.block_size
    want = rule.dense_mask()
    mask = block_mask(rule)
    assert mask.seq_lengths == (queries, length + queries)
    assert mask.BLOCK_SIZE == (tiles.SIZE, tiles.SIZE)
    elements = create_mask(mask.mask_mod, rows, 1, queries, length + queries, device="cpu")
    assert torch.equal(elements, want)
    some, every = by_counting(want)
    full = listed(mask.full_kv_num_blocks, mask.full_kv_indices)
    partial = listed(mask.kv_num_blocks, mask.kv_indices)
    assert torch.equal(full, every)
    assert torch.equal(partial, some & ~every)
    torch_way = create_block_mask(mask.mask_mod, rows, 1, queries, length + queries, device="cpu")
    for part in ("kv", "full_kv", "q", "full_q"):
        counts = [getattr(m, f"{part}_num_blocks") for m in (mask, torch_way)]
        assert torch.equal(*counts), part
        indices = [getattr(m, f"{part}_indices") for m in (mask, torch_way)]
        assert torch.equal(listed(counts[0], indices[0]), listed(counts[1], indices[1])), part


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 2),
    length=st.integers(8, 420),
    anchors=st.integers(1, 36),
    block_size=st.sampled_from([2, 5, 8, 10, 16]),
    documents=st.integers(0, 5),
)
@example(seed=0, rows=1, length=256, anchors=16, block_size=16, documents=0)
@example(seed=1, rows=2, length=384, anchors=16, block_size=8, documents=2)
@example(seed=2, rows=1, length=257, anchors=17, block_size=8, documents=1)
@example(seed=3, rows=1, length=127, anchors=8, block_size=16, documents=3)
@example(seed=4, rows=1, length=128, anchors=1, block_size=2, documents=0)
def test_tiles_and_elements_equal_the_rule_and_torch(
    seed: int, rows: int, length: int, anchors: int, block_size: int, documents: int
) -> None:
    check(
        make_rule(
            seed=seed, rows=rows, length=length, anchors=anchors, block_size=block_size, documents=documents
        )
    )


@pytest.mark.parametrize("block_size", [128, 160, 256, 300])
def test_blocks_as_large_as_tiles_make_full_tiles_of_their_own(block_size: int) -> None:
    check(make_rule(seed=block_size, rows=1, length=384, anchors=3, block_size=block_size, documents=1))


@pytest.mark.parametrize("bucket", [1024, 2048, 3072])
def test_edges_of_a_real_bucket(bucket: int) -> None:
    """Anchors at the ends of documents and tiles, all places padding but one, and none at all."""
    documents = torch.tensor([[0] * 128 + [1] * (bucket - 384) + [2] * 128 + [-1] * 128])
    ends = [bucket - by for by in (385, 384, 257, 256, 129)]
    edges = [0, 1, 127, 128, 129, 255, 256, *ends]
    for kept in (len(edges), 1, 0):
        anchors = (edges[:kept] + [edges[kept - 1]] * 16)[:16]
        check(
            Rule(
                anchors_BN=torch.tensor([anchors]),
                keep_BN=(torch.arange(16) < kept)[None],
                documents_BS=documents,
                block_size=16,
            )
        )


def test_a_row_of_padding_alone_sees_its_own_blocks() -> None:
    rule = Rule(
        anchors_BN=torch.tensor([[3, 5, 9, 9]]),
        keep_BN=torch.tensor([[True, True, True, False]]),
        documents_BS=torch.full((1, 140), -1),
        block_size=4,
    )
    check(rule)
    assert rule.context_spans()[1].tolist() == [[0, 0, 0, 0]]


def test_sorted_anchors_make_few_partial_tiles() -> None:
    """What makes the kernels fast: most of what is seen is in full tiles."""
    generator = torch.Generator().manual_seed(0)
    anchors = torch.randperm(3056, generator=generator)[:512].sort().values
    rule = Rule(
        anchors_BN=anchors[None],
        keep_BN=torch.ones(1, 512, dtype=torch.bool),
        documents_BS=torch.zeros(1, 3072, dtype=torch.int64),
        block_size=16,
    )
    mask = block_mask(rule)
    assert int(mask.full_kv_num_blocks.sum()) > 4 * int(mask.kv_num_blocks.sum())


def test_nothing_of_the_size_of_the_mask_is_made() -> None:
    """All that is allocated for a real row's lists is far smaller than its grid of booleans."""
    rule = make_rule(seed=0, rows=1, length=3072, anchors=512, block_size=16, documents=4)
    lists = tiles.lists(rule)
    tracemalloc.start()
    tiles.lists(rule)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(tensor.nbytes for tensor in lists) < peak  # numpy's memory is seen
    assert peak * 40 < 8192 * (3072 + 8192)
