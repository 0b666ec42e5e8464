"""A tiny target and a drafter that knows its texts by heart: acceptance far above chance, in seconds.

A random target is enough. Nobody can tell its next tokens but from its own hidden states, so a
drafter that guesses them reads hidden states, places and mask tokens as it was trained to.

Shapes: P texts, T tokens of a text, prompt included, C captured width, N anchors of a text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from dflash_runner.anchors import draw
from dflash_runner.attention import Dense
from dflash_runner.capture import Capture
from dflash_runner.decode import plain
from dflash_runner.frames import Piece
from dflash_runner.frozen import FrozenTarget
from dflash_runner.head import FrozenHead
from dflash_runner.loss import Rows, blocks
from dflash_runner.model import Drafter, DrafterConfig
from dflash_runner.optim import AdamWConfig, Optimiser
from dflash_runner.trainer import score
from tiny import VOCABULARY, make_target
from tiny import prompt as random_prompt
from torch import Tensor, nn

TARGET_LAYERS = 9
LAYER_IDS = (1, 2, 3, 4, 5)  # not the default 1 2 4 5 6, nor near the last layer: see decode_public.py
LAYERS = 5  # 58 tensors
BLOCK_SIZE = 8
PROMPTS = 8
PROMPT_TOKENS = 8
NEW_TOKENS = 32
ANCHORS = 12
STEPS = 95
LEARNING_RATE = 5e-3
WARMUP_STEPS = 20
SEED = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Texts:
    """What the target makes of the prompts, longer than is decoded: every block has all its labels."""

    prompts: tuple[Tensor, ...]  # int64 [PROMPT_TOKENS]
    continuations: tuple[tuple[int, ...], ...]
    tokens_PT: Tensor
    hidden_PTC: Tensor  # float32
    gaps: tuple[float, ...]  # per text the target's smallest lead of its best token over its second best


def drafter_config(target: nn.Module) -> DrafterConfig:
    """The drafter's configuration for `target`."""
    return DrafterConfig(
        layers=LAYERS,
        hidden_size=target.config.hidden_size,
        intermediate_size=64,
        heads=4,
        kv_heads=2,
        head_dim=8,
        vocab_size=VOCABULARY,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        block_size=BLOCK_SIZE,
        mask_token_id=VOCABULARY - 1,
        target_layer_ids=LAYER_IDS,
        target_layers=TARGET_LAYERS,
        max_position_embeddings=512,
    )


def save_target(directory: Path) -> FrozenTarget:
    """The target, written as transformers writes models and read as workers read them."""
    make_target(layers=TARGET_LAYERS).save_pretrained(directory)
    return FrozenTarget(directory, dtype=torch.float32, layer_ids=LAYER_IDS)


@torch.inference_mode()
def write_texts(target: nn.Module) -> Texts:
    """The texts, their hidden states, and how clear the target was."""
    prompts = tuple(random_prompt(PROMPT_TOKENS, seed=seed) for seed in range(PROMPTS))
    length = NEW_TOKENS + 2 * BLOCK_SIZE
    continuations = tuple(plain(target, prompt_P=p, new_tokens=length).tokens for p in prompts)
    tokens_PT = torch.cat([torch.stack(prompts), torch.tensor(continuations)], dim=1)
    with Capture(target, layer_ids=LAYER_IDS) as capture:
        best = target(input_ids=tokens_PT).logits[:, PROMPT_TOKENS - 1 :].topk(2, dim=-1).values
        hidden_PTC = capture.take()
    gaps = (best[..., 0] - best[..., 1]).amin(dim=1)
    return Texts(
        prompts=prompts,
        continuations=continuations,
        tokens_PT=tokens_PT.clone(),
        hidden_PTC=hidden_PTC.clone(),
        gaps=tuple(gaps.tolist()),
    )


def rows_of(texts: Texts, *, step: int) -> Rows:
    """All texts with a step's draw of anchors; what the target wrote is supervised."""
    tokens_PT = texts.tokens_PT.clone()
    count, length = tokens_PT.shape
    mask_PT = torch.ones_like(tokens_PT, dtype=torch.bool)
    mask_PT[:, :PROMPT_TOKENS] = False
    drawn = [
        draw(
            mask_PT[sample],
            pieces=[Piece(sample=sample, draw=step, start=0, tokens=length, anchors=ANCHORS)],
            seed=SEED,
            epoch=0,
            places=ANCHORS,
        )
        for sample in range(count)
    ]
    return Rows(
        hidden_BSC=texts.hidden_PTC.clone(),  # made in inference mode, which autograd does not save
        tokens_BS=tokens_PT,
        loss_mask_BS=mask_PT,
        documents_BS=torch.zeros_like(tokens_PT),
        anchors_BN=torch.stack([d.anchors_N for d in drawn]),
        keep_BN=torch.stack([d.keep_N for d in drawn]),
    )


def overfit(texts: Texts, *, config: DrafterConfig, head: FrozenHead) -> tuple[Drafter, list[float]]:
    """A drafter trained on nothing but the texts, and its losses by step."""
    drafter = Drafter(config).initialise(SEED)
    optimiser = Optimiser(drafter, config=AdamWConfig(beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.0))
    losses = []
    for step in range(STEPS):
        rows = rows_of(texts, step=step)
        made = blocks(rows, block_size=BLOCK_SIZE, mask_token_id=config.mask_token_id, gamma=4.0)
        over = Dense(dtype=rows.hidden_BSC.dtype).over
        terms = score(drafter, hidden_BSC=rows.hidden_BSC, blocks=made, frozen=head, over=over)
        optimiser.clear()
        terms.numerator_B.sum().backward()
        optimiser.weight.add_(terms.denominator_B.sum())
        optimiser.rescale(1.0)
        optimiser.clip(optimiser.global_norm(), limit=1.0)
        warm = min(1.0, (step + 1) / WARMUP_STEPS)
        optimiser.step(lr=LEARNING_RATE * warm * 0.5 * (1 + math.cos(math.pi * step / STEPS)))
        losses.append(float(terms.numerator_B.detach().sum() / terms.denominator_B.sum()))
    return drafter, losses
