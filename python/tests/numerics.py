"""Random packed rows and references written as loops, for the tests of the drafter's numerics.

The references share no code with the product and follow DFlash (arXiv 2602.06036) sections 4 and A.1.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
from dflash_runner import loss
from dflash_runner.anchors import draw
from dflash_runner.head import FrozenHead
from dflash_runner.model import Drafter, DrafterConfig
from torch import Tensor

GAMMA = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One sample's place in a row."""

    sample: int
    draw: int
    start: int
    tokens: int
    anchors: int


def drafter_config(**changes: object) -> DrafterConfig:
    """A small drafter's configuration."""
    values: dict[str, object] = {
        "layers": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "vocab_size": 61,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "block_size": 5,
        "mask_token_id": 60,
        "target_layer_ids": (1, 2, 3),
        "target_layers": 6,
        "max_position_embeddings": 256,
    }
    return DrafterConfig(**(values | changes))  # type: ignore[arg-type]


def make_drafter(config: DrafterConfig, *, seed: int = 1) -> Drafter:
    """A drafter whose norms are not 1 either, so that a forgotten weight shows."""
    drafter = Drafter(config).initialise(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(drafter.named_parameters()):
            if parameter.ndim < 2:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
            elif "proj" in name:
                parameter.mul_(2.0)  # attention that prefers some keys to others
    return drafter


def make_head(config: DrafterConfig, *, seed: int = 2) -> FrozenHead:
    """A random embedding and another random head."""
    generator = torch.Generator().manual_seed(seed)
    shape = (config.vocab_size, config.hidden_size)
    return FrozenHead(
        embedding_VD=torch.randn(shape, generator=generator),
        head_VD=0.3 * torch.randn(shape, generator=generator),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One document."""

    tokens: list[int]
    loss_mask: list[bool]
    hidden: Tensor  # [tokens, C]


def random_samples(config: DrafterConfig, *, seed: int, lengths: list[int]) -> list[Sample]:
    """Documents with gaps in their loss masks, each with at least one valid anchor."""
    chooser, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    width = len(config.target_layer_ids) * config.hidden_size
    samples = []
    for length in lengths:
        mask = [chooser.random() < 0.8 for _ in range(length)]
        at = chooser.randrange(length - 1)
        mask[at] = mask[at + 1] = True
        samples.append(
            Sample(
                tokens=[chooser.randrange(config.mask_token_id) for _ in range(length)],
                loss_mask=mask,
                hidden=torch.randn(length, width, generator=generator),
            )
        )
    return samples


def valid_of(sample: Sample) -> list[int]:
    """Valid anchors of a document, by a loop."""
    return [t for t in range(len(sample.tokens) - 1) if sample.loss_mask[t] and sample.loss_mask[t + 1]]


def parts_of(samples: list[Sample], *, first: int = 0, most: int = 4) -> list[Part]:
    """The samples side by side in one row, sample numbers from `first`."""
    parts, start = [], 0
    for index, sample in enumerate(samples):
        count = min(most, len(valid_of(sample)))
        parts.append(
            Part(sample=first + index, draw=0, start=start, tokens=len(sample.tokens), anchors=count)
        )
        start += len(sample.tokens)
    return parts


def pack(samples: list[Sample], parts: list[Part], *, length: int, places: int, seed: int = 0) -> loss.Rows:
    """One packed and padded row, with its anchors drawn."""
    width = samples[0].hidden.shape[1]
    tokens = torch.zeros(1, length, dtype=torch.int64)
    mask = torch.zeros(1, length, dtype=torch.bool)
    documents = torch.full((1, length), -1, dtype=torch.int64)
    hidden = torch.full((1, length, width), 7.0)  # padding that shows where it leaks
    for number, (sample, part) in enumerate(zip(samples, parts, strict=True)):
        span = slice(part.start, part.start + part.tokens)
        tokens[0, span] = torch.tensor(sample.tokens)
        mask[0, span] = torch.tensor(sample.loss_mask)
        documents[0, span] = number
        hidden[0, span] = sample.hidden
    drawn = draw(mask[0], pieces=parts, seed=seed, epoch=0, places=places)
    return loss.Rows(
        hidden_BSC=hidden,
        tokens_BS=tokens,
        loss_mask_BS=mask,
        documents_BS=documents,
        anchors_BN=drawn.anchors_N[None],
        keep_BN=drawn.keep_N[None],
    )


def random_row(config: DrafterConfig, *, seed: int) -> loss.Rows:
    """A row of one to four documents, with padding tokens and padding places."""
    chooser = random.Random(seed)
    samples = random_samples(
        config, seed=seed, lengths=[chooser.randint(3, 14) for _ in range(chooser.randint(1, 4))]
    )
    used = sum(len(s.tokens) for s in samples)
    parts = parts_of(samples)
    places = sum(p.anchors for p in parts) + chooser.randint(1, 3)
    return pack(samples, parts, length=used + chooser.randint(0, 5), places=places, seed=seed)


def mask_by_loops(rows: loss.Rows, *, block_size: int) -> list[list[list[bool]]]:
    """The rule of the mask, element by element."""
    result = []
    for row in range(len(rows.tokens_BS)):
        documents = rows.documents_BS[row].tolist()
        anchors, keep = rows.anchors_BN[row].tolist(), rows.keep_BN[row].tolist()
        length = len(documents)
        lines = []
        for query in range(len(anchors) * block_size):
            block = query // block_size
            anchor = anchors[block]
            line = [
                keep[block] and k < anchor and documents[k] == documents[anchor] and documents[anchor] >= 0
                for k in range(length)
            ]
            line += [k // block_size == block for k in range(len(anchors) * block_size)]
            lines.append(line)
        result.append(lines)
    return result


def targets_by_loops(
    rows: loss.Rows, *, block_size: int, gamma: float
) -> dict[tuple[int, int, int], tuple[int, float]]:
    """(label, weight) of each (row, block, slot) that counts."""
    result = {}
    for row in range(len(rows.tokens_BS)):
        documents, mask = rows.documents_BS[row].tolist(), rows.loss_mask_BS[row].tolist()
        for block, anchor in enumerate(rows.anchors_BN[row].tolist()):
            for slot in range(1, block_size):
                place = anchor + slot
                if not rows.keep_BN[row, block] or place >= len(documents):
                    continue
                if documents[place] != documents[anchor] or not mask[place]:
                    continue
                label = int(rows.tokens_BS[row, place])
                result[row, block, slot] = (label, math.exp(-(slot - 1) / gamma))
    return result
