"""Greedy decoding of one text, plain and speculative, and the acceptance length that it shows.

Shapes: P prompt tokens, S tokens of a forward, C captured width, K block size, J = K-1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from dflash_runner.capture import Capture
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.model import DrafterConfig

LOOP_WINDOW = 48
LOOP_SHARE = 0.9
TIES = {torch.float32: 1e-5, torch.bfloat16: 2**-6}
"""How near two logits may be, as a share of the largest, for rounding to decide between them."""


class Guesser(Protocol):
    """What decodes speculatively: `serving.ServingDrafter`, or a test's."""

    config: DrafterConfig

    def begin(self, *, capacity: int) -> None:
        """Start a text of at most `capacity` tokens."""

    def extend(self, hidden_SC: Tensor) -> None:
        """Take in the hidden states of the next accepted tokens."""

    def guess(self, token: int) -> Tensor:
        """The J tokens after `token`, int64 [J]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoded:
    """A decoded text and what it cost."""

    tokens: tuple[int, ...]  # exactly the new ones
    forwards: int  # of the target, without the prompt's
    accepted: tuple[int, ...]  # tokens gained by each forward, the bonus token counted

    @property
    def acceptance_length(self) -> float:
        """Tokens gained per target forward; the last forward's are not cut at the number asked for."""
        return sum(self.accepted) / max(1, len(self.accepted))


def looping(tokens: Sequence[int]) -> bool:
    """Whether a text ends in a loop.

    It does where some period p from 1 to 48 explains more than 90 % of the last 48 tokens: token i
    is explained when it has a token i - p and equals it. A text of fewer than 48 tokens is
    judged by all of them. Only new tokens are to be given, never the prompt.
    """
    window = min(LOOP_WINDOW, len(tokens))
    for period in range(1, LOOP_WINDOW + 1):
        first = max(len(tokens) - window, period)
        same = sum(tokens[i] == tokens[i - period] for i in range(first, len(tokens)))
        if same > LOOP_SHARE * window:
            return True
    return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Parting:
    """Where two greedy texts of one prompt part, and how near the target's choice was."""

    place: int  # of the first token that differs, counted from the first new one
    gap: float  # between the logits of the two tokens, as a share of the largest logit

    def is_tie(self, dtype: torch.dtype) -> bool:
        """Whether rounding decides between the two.

        The forward of one token and that of a block sum in another order on a GPU, so both texts are greedy
        texts of the target where their logits are this near. In bfloat16 a logit is known to 1 part in 128
        when it is made, and differs more by what its hidden state gathered in all layers.
        """
        return self.gap <= TIES[dtype]


@torch.inference_mode()
def parting(
    model: nn.Module, *, prompt_P: Tensor, one: Sequence[int], other: Sequence[int]
) -> Parting | None:
    """Where two texts of a prompt part, judged by one forward over what they share; None for equal texts.

    A text that ends before the other parts from it there, by no tie.

    Args:
        model: a causal language model of transformers, in eval mode.
        prompt_P: int64 ids, on the model's device.
        one: new tokens of a text.
        other: those of another.
    """
    if tuple(one) == tuple(other):
        return None
    shared = min(len(one), len(other))
    place = next((i for i in range(shared) if one[i] != other[i]), shared)
    if place == shared:
        return Parting(place=place, gap=float("inf"))
    ids = torch.cat([prompt_P, prompt_P.new_tensor(one[:place])])[None]
    logits_V = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1].float()
    gap = (logits_V[one[place]] - logits_V[other[place]]).abs() / logits_V.abs().max()
    return Parting(place=place, gap=float(gap))


@torch.inference_mode()
def plain(
    model: nn.Module, *, prompt_P: Tensor, new_tokens: int, stop_ids: frozenset[int] = frozenset()
) -> Decoded:
    """Greedy decoding by the target alone: what speculative decoding is measured against.

    Args:
        model: a causal language model of transformers, in eval mode.
        prompt_P: int64 ids, at least one.
        new_tokens: how many to decode, at least one.
        stop_ids: decoding ends after any of them.
    """
    cache, ids = DynamicCache(config=model.config), prompt_P[None]
    tokens: list[int] = []
    while len(tokens) < new_tokens:
        logits = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        ids = logits[:, -1].argmax(dim=-1, keepdim=True)
        tokens.append(int(ids))
        if tokens[-1] in stop_ids:
            break
    gained = len(tokens) - 1
    return Decoded(tokens=tuple(tokens), forwards=gained, accepted=(1,) * gained)


@torch.inference_mode()
def speculative(
    model: nn.Module,
    *,
    drafter: Guesser,
    prompt_P: Tensor,
    new_tokens: int,
    stop_ids: frozenset[int] = frozenset(),
) -> Decoded:
    """Greedy speculative decoding: the text of `plain`, in fewer forwards of the target.

    Each round the drafter guesses J tokens, the target checks them in one forward, and the longest
    right run is taken with the target's own next token, the bonus.

    Raises:
        WorkerError: invalid, where the target's cache cannot be cut back (recurrent states).

    Source: DFlash (arXiv 2602.06036) section 4.1.
    """
    size = drafter.config.block_size
    cache = DynamicCache(config=model.config)
    cache.activate_past_recording()  # windows keep what a cut may bring back
    drafter.begin(capacity=len(prompt_P) + new_tokens + size)
    with Capture(model, layer_ids=drafter.config.target_layer_ids) as capture:
        first = model(
            input_ids=prompt_P[None], past_key_values=cache, use_cache=True, logits_to_keep=1
        ).logits
        _check_croppable(cache, model)
        cache.crop(0)
        drafter.extend(capture.take()[0])
        tokens, accepted = [int(first[0, -1].argmax())], []
        while len(tokens) < new_tokens and tokens[-1] not in stop_ids:
            gained = _round(model, cache, drafter, capture, tokens[-1])
            stops = [place for place, token in enumerate(gained) if token in stop_ids]
            gained = gained[: stops[0] + 1] if stops else gained
            tokens += gained
            accepted.append(len(gained))
    return Decoded(tokens=tuple(tokens[:new_tokens]), forwards=len(accepted), accepted=tuple(accepted))


def _round(
    model: nn.Module, cache: DynamicCache, drafter: Guesser, capture: Capture, token: int
) -> list[int]:
    """The tokens that one forward of the target gains after `token`; one wait for the device."""
    guess_J = drafter.guess(token)
    ids_K = torch.cat([guess_J.new_tensor([token]), guess_J])
    logits = model(input_ids=ids_K[None], past_key_values=cache, use_cache=True).logits
    want_K = logits[0].argmax(dim=-1)
    guess, want = torch.stack([ids_K, want_K]).tolist()
    right = 0
    while right < len(want) - 1 and guess[right + 1] == want[right]:
        right += 1
    drafter.extend(capture.take()[0, : right + 1])
    cache.crop(right + 1 - len(want))  # minus how many to remove; windows need the call at 0 as well
    return want[: right + 1]


def _check_croppable(cache: DynamicCache, model: nn.Module) -> None:
    if not cache.is_croppable:
        odd = [index for index, layer in enumerate(cache.layers) if not layer.is_croppable]
        raise WorkerError(
            Kind.INVALID,
            f"decode with {type(model).__name__}: "
            f"want a cache that can be cut back, got none in layers {odd[:8]}",
        )
