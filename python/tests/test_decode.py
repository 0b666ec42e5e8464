"""Decoding: lossless, counted right, and the serving forward equal to the training forward."""

from __future__ import annotations

import pytest
import torch
from dflash_runner import loss
from dflash_runner.attention import sdpa
from dflash_runner.capture import Capture
from dflash_runner.decode import looping, parting, plain, speculative
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.serving import ServingDrafter
from tiny import config_for, drafter_for, head_of, make_target, prompt
from torch import Tensor, nn


@pytest.fixture(scope="module")
def target() -> nn.Module:
    return make_target()


class Told:
    """A guesser that knows the text, and is right in the first `right` guesses of each block."""

    def __init__(self, target: nn.Module, text: list[int], *, right: int) -> None:
        self.config = config_for(target)
        self.text, self.right, self.length = text, right, 0
        self.widths: list[int] = []

    def begin(self, *, capacity: int) -> None:
        self.length, self.capacity = 0, capacity

    def extend(self, hidden_SC: Tensor) -> None:
        self.length += len(hidden_SC)
        assert self.length <= self.capacity
        self.widths.append(len(hidden_SC))

    def guess(self, token: int) -> Tensor:
        assert token == self.text[self.length]  # the context is all that was accepted before it
        known = self.text[self.length + 1 :][: self.config.block_size - 1]
        known += [0] * (self.config.block_size - 1 - len(known))
        return torch.tensor([t if i < self.right else t + 1 for i, t in enumerate(known)])


@pytest.mark.parametrize("length", [1, 9, 30])
def test_speculative_text_is_the_plain_text(target: nn.Module, length: int) -> None:
    drafter = ServingDrafter(drafter_for(target), head=head_of(target))
    want = plain(target, prompt_P=prompt(length), new_tokens=40)
    got = speculative(target, drafter=drafter, prompt_P=prompt(length), new_tokens=40)
    assert got.tokens == want.tokens
    assert len(got.tokens) == 40
    assert want.forwards == 39  # the prompt's forward gives the first token


def test_texts_that_part_are_judged_where_they_do(target: nn.Module) -> None:
    """By the two tokens' logits after what is shared, whichever text comes first."""
    text = plain(target, prompt_P=prompt(9), new_tokens=10).tokens
    assert parting(target, prompt_P=prompt(9), one=text, other=text) is None
    for place in (0, 4, 9):
        other = [*text[:place], (text[place] + 1) % 60, *(0 for _ in text[place + 1 :])]
        logits = target(input_ids=torch.cat([prompt(9), torch.tensor(text[:place])]).long()[None]).logits[
            0, -1
        ]
        want = float((logits[text[place]] - logits[other[place]]) / logits.abs().max())
        for pair in ((text, other), (other, text)):
            found = parting(target, prompt_P=prompt(9), one=pair[0], other=pair[1])
            assert found.place == place
            assert found.gap == pytest.approx(want, rel=1e-4) and want > 2**-6
            assert not found.is_tie(torch.float32) and not found.is_tie(torch.bfloat16)


def test_two_tokens_that_rounding_tells_apart_are_a_tie() -> None:
    """Equal rows of the head are one in any dtype; rows that differ by a hundredth only in bfloat16."""
    target = make_target()
    text = plain(target, prompt_P=prompt(9), new_tokens=3).tokens
    head = target.lm_head.weight.data
    other = [(text[0] + 1) % 60, 0, 0]
    for factor, ties in ((1.0, [True, True]), (0.99, [False, True]), (0.9, [False, False])):
        head[other[0]] = factor * head[text[0]]
        found = parting(target, prompt_P=prompt(9), one=text, other=other)
        assert [found.is_tie(dtype) for dtype in (torch.float32, torch.bfloat16)] == ties


def test_a_text_that_ends_early_is_no_tie(target: nn.Module) -> None:
    text = plain(target, prompt_P=prompt(9), new_tokens=6).tokens
    found = parting(target, prompt_P=prompt(9), one=text, other=text[:4])
    assert found.place == 4 and not found.is_tie(torch.bfloat16)


def test_plain_text_is_that_of_transformers(target: nn.Module) -> None:
    ids = prompt(12)[None]
    for _ in range(25):
        ids = torch.cat([ids, target(input_ids=ids).logits[:, -1:].argmax(-1)], dim=1)
    assert plain(target, prompt_P=prompt(12), new_tokens=25).tokens == tuple(ids[0, 12:].tolist())


def test_text_is_the_same_with_sliding_windows() -> None:
    target = make_target(window=8)
    drafter = ServingDrafter(drafter_for(target), head=head_of(target))
    want = plain(target, prompt_P=prompt(20), new_tokens=30)
    for guesser in (drafter, Told(target, prompt(20).tolist() + list(want.tokens), right=2)):
        got = speculative(target, drafter=guesser, prompt_P=prompt(20), new_tokens=30)
        assert got.tokens == want.tokens


@pytest.mark.parametrize("right", range(6))
def test_accepted_lengths_count_the_bonus_token(target: nn.Module, right: int) -> None:
    want = plain(target, prompt_P=prompt(7), new_tokens=40)
    guesser = Told(target, prompt(7).tolist() + list(want.tokens), right=right)
    got = speculative(target, drafter=guesser, prompt_P=prompt(7), new_tokens=24)
    gained = min(right, guesser.config.block_size - 1) + 1
    assert got.tokens == want.tokens[:24]
    assert set(got.accepted) == {gained}  # 1 where nothing is right, K where all is
    assert got.acceptance_length == gained
    assert got.forwards == len(got.accepted) == -(-23 // gained)
    assert guesser.widths == [7] + [gained] * got.forwards


def test_decoding_stops_after_a_stop_id(target: nn.Module) -> None:
    whole = plain(target, prompt_P=prompt(7), new_tokens=30)
    inside = [i for i, t in enumerate(whole.tokens) if whole.tokens.index(t) == i and i % 6 in (2, 3, 4)]
    first = inside[-1]  # within a round of 6, not at its end
    stop = whole.tokens[first]
    stopped = plain(target, prompt_P=prompt(7), new_tokens=30, stop_ids=frozenset([stop]))
    guesser = Told(target, prompt(7).tolist() + list(whole.tokens), right=5)
    fast = speculative(target, drafter=guesser, prompt_P=prompt(7), new_tokens=30, stop_ids=frozenset([stop]))
    assert stopped.tokens == fast.tokens == whole.tokens[: first + 1]
    assert sum(fast.accepted) == first


def test_a_cache_that_cannot_be_cut_back_is_refused(
    target: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.cache_utils.DynamicLayer.is_croppable", False)
    drafter = ServingDrafter(drafter_for(target), head=head_of(target))
    with pytest.raises(WorkerError, match=r"cut back, got none in layers \[0, 1") as caught:
        speculative(target, drafter=drafter, prompt_P=prompt(4), new_tokens=4)
    assert caught.value.kind is Kind.INVALID


def test_captured_hidden_states_are_those_of_transformers(target: nn.Module) -> None:
    ids = prompt(13)[None]
    want = target(input_ids=ids, output_hidden_states=True).hidden_states
    with Capture(target, layer_ids=(0, 2, 3)) as capture:
        target(input_ids=ids)
        got = capture.take()
    assert torch.equal(got, torch.cat([want[1], want[3], want[4]], dim=-1))
    target(input_ids=ids)
    with pytest.raises(AssertionError):
        capture.take()  # closed: nothing is kept any more


def test_capture_refuses_a_block_that_is_not_there(target: nn.Module) -> None:
    with pytest.raises(WorkerError, match=r"want 0 to 4, got \[1, 5\]"):
        Capture(target, layer_ids=(1, 5))


def test_serving_logits_are_the_training_logits(target: nn.Module) -> None:
    drafter, head, ids = drafter_for(target), head_of(target), prompt(31)[None]
    with Capture(target, layer_ids=drafter.config.target_layer_ids) as capture:
        target(input_ids=ids)
        hidden = capture.take()
    anchors = torch.tensor([[0, 1, 9, 17, 24]])
    size = drafter.config.block_size
    rows = loss.Rows(
        hidden_BSC=hidden,
        tokens_BS=ids,
        loss_mask_BS=torch.ones_like(ids, dtype=torch.bool),
        documents_BS=torch.zeros_like(ids),
        anchors_BN=anchors,
        keep_BN=torch.ones_like(anchors, dtype=torch.bool),
    )
    blocks = loss.blocks(rows, block_size=size, mask_token_id=drafter.config.mask_token_id, gamma=4.0)
    context_rotary, noise_rotary = loss.rotaries(blocks, config=drafter.config, dtype=torch.float32)
    with torch.no_grad():
        trained = drafter(
            head.embed(blocks.noise_BQ),
            hidden_BSC=hidden,
            context_rotary=context_rotary,
            noise_rotary=noise_rotary,
            attend=sdpa(blocks.rule, dtype=torch.float32),
        )
        want = head.logits(trained).unflatten(1, (-1, size))[0, :, 1:]
        serving = ServingDrafter(drafter, head=head)
        serving.begin(capacity=31)
        taken = 0
        for index, anchor in enumerate(anchors[0].tolist()):
            serving.extend(hidden[0, taken:anchor])
            taken = anchor
            got = serving.logits(int(ids[0, anchor]))
            torch.testing.assert_close(got, want[index], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("tokens", "want"),
    [
        pytest.param([7] * 96, True, id="one token for ever"),
        pytest.param(list(range(48)) * 2, True, id="period 48"),
        pytest.param(list(range(49)) * 2, False, id="period 49"),
        pytest.param(list(range(96)), False, id="no repetition"),
        pytest.param([1, 2, 3] * 16 + list(range(10, 58)), False, id="a loop that ended"),
        pytest.param(list(range(10, 58)) + [1, 2, 3] * 16, True, id="a loop at the end"),
        pytest.param(list(range(10, 58)) + [1, 2, 3] * 14 + [9] * 6, False, id="less than 90 % of it"),
        pytest.param([5] * 20, True, id="shorter than the window"),
        pytest.param([], False, id="empty"),
    ],
)
def test_looping(tokens: list[int], want: bool) -> None:
    assert looping(tokens) is want


def test_looping_counts_positions_exactly() -> None:
    text = list(range(100, 148)) + [1, 2] * 24
    text[-10], text[-5] = 90, 91  # with period 2: 2 first, 2 at each change, and so 42 of 48 left
    assert sum(text[i] == text[i - 2] for i in range(48, 96)) == 42
    assert not looping(text)  # 42 < 43.2
    text[-5] = text[-7]
    assert sum(text[i] == text[i - 2] for i in range(48, 96)) == 44
    assert looping(text)
