"""The layout of flat buffers: by when the backward completes each gradient, cut into buckets."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from dflash_runner import loss
from dflash_runner.attention import sdpa
from dflash_runner.flat import BUCKET_BYTES, Layout, lay_out
from dflash_runner.model import Drafter, DrafterConfig
from numerics import drafter_config, make_drafter, make_head, random_row
from torch import nn

CONFIG = drafter_config(layers=3)
REFERENCE = {
    "layers": 5,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "target_layer_ids": (1, 9, 17, 25, 33),
    "target_layers": 36,
}


def layout_of(drafter: nn.Module, **options: int) -> Layout:
    """The layout of a drafter's parameters."""
    return lay_out(dict(drafter.named_parameters()), **options)


def reference() -> Layout:
    """That of a drafter of 1.05 B parameters, of which nothing is allocated."""
    with torch.device("meta"):
        return layout_of(Drafter(DrafterConfig(**(dataclasses.asdict(CONFIG) | REFERENCE))).bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrices_lie_as_the_backward_completes_them(dtype: torch.dtype) -> None:
    """Told by autograd itself, for the drafter's own forward and loss."""
    drafter = make_drafter(CONFIG).to(dtype)
    came: list[str] = []
    for name, parameter in drafter.named_parameters():
        if parameter.ndim >= 2:
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: came.append(name))
    rows = random_row(CONFIG, seed=1)
    rows = dataclasses.replace(rows, hidden_BSC=rows.hidden_BSC.to(dtype))
    blocks = loss.blocks(rows, block_size=CONFIG.block_size, mask_token_id=CONFIG.mask_token_id, gamma=4.0)
    attend = sdpa(blocks.rule, dtype=dtype)
    terms = loss.terms(
        drafter, head=make_head(CONFIG), hidden_BSC=rows.hidden_BSC, blocks=blocks, attend=attend
    )
    terms.numerator_B.sum().backward()
    assert came == [name for bucket in layout_of(drafter).buckets for name in bucket.names]


@pytest.mark.parametrize(("dtype", "elements"), [(torch.float32, 16), (torch.bfloat16, 32)])
def test_places_are_64_bytes_apart_and_none_overlaps(dtype: torch.dtype, elements: int) -> None:
    drafter = make_drafter(drafter_config(hidden_size=36, head_dim=6, intermediate_size=50)).to(dtype)
    layout = layout_of(drafter)
    assert layout.places.keys() == dict(drafter.named_parameters()).keys()
    end = 0
    for place in layout.places.values():
        assert place.offset % elements == 0 and 0 <= place.offset - end < elements
        end = place.offset + place.shape.numel()
    assert 0 <= layout.total - end < elements == layout.alignment
    for name, place in layout.places.items():
        assert (place.offset < layout.decayed) == (drafter.get_parameter(name).ndim >= 2)


@pytest.mark.parametrize("bucket_bytes", [4, 9000, 40_000, BUCKET_BYTES])
def test_buckets_are_neighbours_that_hold_every_matrix_once(bucket_bytes: int) -> None:
    layout = layout_of(make_drafter(CONFIG), bucket_bytes=bucket_bytes)
    matrices = [name for name, place in layout.places.items() if place.offset < layout.decayed]
    assert [name for bucket in layout.buckets for name in bucket.names] == matrices
    ends = [0, *(bucket.high for bucket in layout.buckets)]
    assert [bucket.low for bucket in layout.buckets] == ends[:-1] and ends[-1] == layout.decayed
    for bucket in layout.buckets:
        assert layout.places[bucket.names[0]].offset == bucket.low
    if bucket_bytes == 4:
        assert len(layout.buckets) == len(matrices)
    if bucket_bytes == BUCKET_BYTES:
        assert len(layout.buckets) == 1


def test_the_buckets_of_a_large_drafter() -> None:
    """Of some 200 MiB; what is left when the backward ends is a tenth of the whole."""
    layout = reference()
    assert layout.total == pytest.approx(1.05e9, rel=0.01) and layout.total < 2**31
    sizes = [4 * (bucket.high - bucket.low) for bucket in layout.buckets]
    for size, bucket in zip(sizes, layout.buckets, strict=True):
        assert size <= 2 * BUCKET_BYTES + 2**20 or len(bucket.names) == 1, (size, bucket.names)
    assert len(sizes) == 23 and sum(size < BUCKET_BYTES for size in sizes) == 1
    assert layout.buckets[-1].names == ("fc.weight",)
    assert sizes[-1] < 0.1 * sum(sizes)
    assert 4 * (layout.total - layout.decayed) < 2**20


def test_parameters_of_two_dtypes_are_refused() -> None:
    drafter = make_drafter(CONFIG)
    drafter.fc.bfloat16()
    with pytest.raises(ValueError, match=r"want one dtype, got \['torch.bfloat16', 'torch.float32'\]"):
        layout_of(drafter)
