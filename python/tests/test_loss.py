"""The drafter's loss against references written as loops, and what breaks it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from dflash_runner import loss
from dflash_runner.attention import AttentionCounter, Rule, sdpa
from dflash_runner.loss import Blocks, Rows, RowTerms
from dflash_runner.model import Drafter
from dflash_runner.operations import PLAIN, Operations
from numerics import (
    GAMMA,
    drafter_config,
    make_drafter,
    make_head,
    mask_by_loops,
    pack,
    parts_of,
    random_row,
    random_samples,
    targets_by_loops,
)
from reference_drafter import row_terms

CONFIG = drafter_config()
SEEDS = range(6)


def blocks_of(rows: Rows) -> Blocks:
    return loss.blocks(rows, block_size=CONFIG.block_size, mask_token_id=CONFIG.mask_token_id, gamma=GAMMA)


def terms_of(
    drafter: Drafter, rows: Rows, blocks: Blocks | None = None, *, by: Operations = PLAIN
) -> RowTerms:
    blocks = blocks or blocks_of(rows)
    attend = sdpa(blocks.rule, dtype=torch.float32)
    return loss.terms(
        drafter, head=make_head(CONFIG), hidden_BSC=rows.hidden_BSC, blocks=blocks, attend=attend, by=by
    )


def check_mask(rows: Rows, rule: Rule) -> None:
    # as tensors: unequal lists are explained by a diff, which takes pytest an hour here where CI is set
    want = torch.tensor(mask_by_loops(rows, block_size=CONFIG.block_size))
    assert torch.equal(rule.dense_mask()[:, 0], want)


def check_targets(rows: Rows, blocks: Blocks) -> None:
    want = targets_by_loops(rows, block_size=CONFIG.block_size, gamma=GAMMA)
    got = {
        (row, block, slot + 1): (
            int(blocks.labels_BNJ[row, block, slot]),
            float(blocks.weights_BNJ[row, block, slot]),
        )
        for row, block, slot in blocks.valid_BNJ.nonzero().tolist()
    }
    assert got.keys() == want.keys()
    for key, (label, weight) in want.items():
        assert got[key][0] == label
        assert got[key][1] == pytest.approx(weight, rel=1e-6)
    assert float(blocks.weights_BNJ.sum()) == pytest.approx(sum(w for _, w in want.values()), rel=1e-6)


def check_loss(drafter: Drafter, rows: Rows, blocks: Blocks) -> None:
    state = {name: p.detach().double().requires_grad_() for name, p in drafter.named_parameters()}
    numerator, denominator = row_terms(state, CONFIG, make_head(CONFIG), rows=rows, gamma=GAMMA)
    got = terms_of(drafter, rows, blocks)
    torch.testing.assert_close(got.numerator_B.sum().double(), numerator, rtol=1e-5, atol=1e-5)
    assert float(got.denominator_B.sum()) == pytest.approx(denominator, rel=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_mask_equals_the_loop(seed: int) -> None:
    rows = random_row(CONFIG, seed=seed)
    assert not rows.keep_BN.all()  # a padding place is among them
    check_mask(rows, blocks_of(rows).rule)


@pytest.mark.parametrize("seed", SEEDS)
def test_visible_equals_the_dense_mask(seed: int) -> None:
    rule = blocks_of(random_row(CONFIG, seed=seed)).rule
    mask = rule.dense_mask()[:, 0]
    row, query, key = (torch.arange(n) for n in mask.shape)
    got = rule.visible(row[:, None, None], query[None, :, None], key[None, None])
    assert torch.equal(got, mask)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_query_sees_nothing(seed: int) -> None:
    assert blocks_of(random_row(CONFIG, seed=seed)).rule.dense_mask().any(dim=-1).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_labels_and_weights_equal_the_loop(seed: int) -> None:
    rows = random_row(CONFIG, seed=seed)
    check_targets(rows, blocks_of(rows))


def test_positions_restart_with_each_document() -> None:
    samples = random_samples(CONFIG, seed=3, lengths=[4, 3, 6])
    rows = pack(samples, parts_of(samples), length=15, places=12)
    blocks = blocks_of(rows)
    assert blocks.positions_BS[0].tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4, 5, 0, 1]
    starts = [0, 4, 7]
    for anchor, keep, got in zip(
        rows.anchors_BN[0].tolist(),
        rows.keep_BN[0].tolist(),
        blocks.noise_positions_BQ.view(12, CONFIG.block_size).tolist(),
        strict=True,
    ):
        first = anchor - max(s for s in starts if s <= anchor)
        assert not keep or got == list(range(first, first + CONFIG.block_size))


@pytest.mark.parametrize("seed", SEEDS)
def test_loss_equals_the_plain_drafter(seed: int) -> None:
    rows = random_row(CONFIG, seed=seed)
    check_loss(make_drafter(CONFIG), rows, blocks_of(rows))


def test_gradients_equal_the_plain_drafter() -> None:
    rows, drafter = random_row(CONFIG, seed=4), make_drafter(CONFIG)
    state = {name: p.detach().double().requires_grad_() for name, p in drafter.named_parameters()}
    numerator, _ = row_terms(state, CONFIG, make_head(CONFIG), rows=rows, gamma=GAMMA)
    numerator.backward()
    terms_of(drafter, rows).numerator_B.sum().backward()
    for name, parameter in drafter.named_parameters():
        torch.testing.assert_close(parameter.grad.double(), state[name].grad, rtol=1e-4, atol=1e-5)


def _with_mask(change: Callable[[Rule, torch.Tensor], torch.Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    true = Rule.dense_mask

    def apply(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Rule, "dense_mask", lambda rule: change(rule, true(rule)))

    return apply


def _leaked(rule: Rule, mask: torch.Tensor) -> torch.Tensor:
    """Context up to and including the anchor."""
    for block, anchor in enumerate(rule.anchors_BN[0].tolist()):
        mask[0, 0, block * rule.block_size : (block + 1) * rule.block_size, anchor] = True
    return mask


def _causal(rule: Rule, mask: torch.Tensor) -> torch.Tensor:
    """No sight of later offsets of the own block."""
    length = rule.documents_BS.shape[1]
    own = mask[..., length:]
    return torch.cat([mask[..., :length], own.tril()], dim=-1)


def _crossing(rule: Rule, mask: torch.Tensor) -> torch.Tensor:
    """Context from every document before the anchor."""
    for block, anchor in enumerate(rule.anchors_BN[0].tolist()):
        mask[0, 0, block * rule.block_size : (block + 1) * rule.block_size, :anchor] = True
    return mask


def _with_blocks(change: Callable[[Rows, Blocks], Blocks]) -> Callable[[pytest.MonkeyPatch], None]:
    true = loss.blocks

    def apply(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(loss, "blocks", lambda rows, **options: change(rows, true(rows, **options)))

    return apply


def _shifted(rows: Rows, blocks: Blocks) -> Blocks:
    """Labels of a causal model: the token after each place."""
    place = rows.anchors_BN[..., None] + torch.arange(2, CONFIG.block_size + 1)
    labels = rows.tokens_BS.gather(1, place.clamp(max=rows.tokens_BS.shape[1] - 1).flatten(1))
    return dataclasses.replace(blocks, labels_BNJ=labels.view_as(blocks.labels_BNJ))


def _labels_cross(rows: Rows, blocks: Blocks) -> Blocks:
    """Labels of the next document count as well."""
    place = rows.anchors_BN[..., None] + torch.arange(1, CONFIG.block_size)
    inside = place < rows.tokens_BS.shape[1]
    mask = rows.loss_mask_BS.gather(1, (place * inside).flatten(1)).view_as(inside) & inside
    valid = mask & rows.keep_BN[..., None]
    decay = torch.exp(-torch.arange(CONFIG.block_size - 1) / GAMMA)
    return dataclasses.replace(blocks, valid_BNJ=valid, weights_BNJ=decay * valid)


def _undecayed(_: Rows, blocks: Blocks) -> Blocks:
    return dataclasses.replace(blocks, weights_BNJ=blocks.valid_BNJ.float())


@pytest.mark.parametrize(
    ("break_it", "caught_by"),
    [
        pytest.param(_with_mask(_leaked), "mask", id="leaked context"),
        pytest.param(_with_mask(_causal), "mask", id="causal block"),
        pytest.param(_with_mask(_crossing), "mask", id="attention crosses a document"),
        pytest.param(_with_blocks(_shifted), "targets", id="shifted label"),
        pytest.param(_with_blocks(_labels_cross), "targets", id="label crosses a document"),
        pytest.param(_with_blocks(_undecayed), "targets", id="weights without decay"),
    ],
)
def test_references_notice(
    monkeypatch: pytest.MonkeyPatch, break_it: Callable[[pytest.MonkeyPatch], None], caught_by: str
) -> None:
    samples = random_samples(CONFIG, seed=11, lengths=[9, 8, 7])
    rows = pack(samples, parts_of(samples), length=26, places=14)
    break_it(monkeypatch)
    blocks = blocks_of(rows)
    with pytest.raises(AssertionError):
        check_mask(rows, blocks.rule) if caught_by == "mask" else check_targets(rows, blocks)
    with pytest.raises(AssertionError):
        check_loss(make_drafter(CONFIG), rows, blocks)


def test_packed_equals_unpacked() -> None:
    drafter, samples = make_drafter(CONFIG), random_samples(CONFIG, seed=5, lengths=[12, 7, 10])
    parts = parts_of(samples)
    together = terms_of(drafter, pack(samples, parts, length=31, places=16))
    together.numerator_B.sum().backward()
    gradients = {name: p.grad.clone() for name, p in drafter.named_parameters()}
    drafter.zero_grad()
    numerator, denominator = 0.0, 0.0
    for sample, part in zip(samples, parts, strict=True):
        alone = dataclasses.replace(part, start=0)
        each = terms_of(drafter, pack([sample], [alone], length=len(sample.tokens), places=part.anchors))
        each.numerator_B.sum().backward()
        numerator += float(each.numerator_B.detach().sum())
        denominator += float(each.denominator_B.sum())
    assert float(together.numerator_B.detach().sum()) == pytest.approx(numerator, rel=1e-5)
    assert float(together.denominator_B.sum()) == pytest.approx(denominator, rel=1e-6)
    for name, parameter in drafter.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-5, atol=1e-5)


def test_chunks_change_nothing() -> None:
    rows = random_row(CONFIG, seed=2)
    results = []
    for chunk_bytes in (1 << 30, 7 * 4 * CONFIG.vocab_size, 1):
        drafter = make_drafter(CONFIG)
        terms = terms_of(drafter, rows, by=dataclasses.replace(PLAIN, score_bytes=chunk_bytes))
        terms.numerator_B.sum().backward()
        results.append((terms.numerator_B.detach(), drafter.fc.weight.grad, terms.hits_BJ))
    for other in results[1:]:
        torch.testing.assert_close(other[0], results[0][0], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(other[1], results[0][1], rtol=1e-5, atol=1e-6)
        assert torch.equal(other[2], results[0][2])


@pytest.mark.parametrize(
    ("slots", "most", "rows"), [(7680, 3533, 2560), (7680, 99999, 7680), (97, 50, 50), (60, 1, 1), (60, 0, 1)]
)
def test_chunks_have_one_shape_where_that_costs_little(slots: int, most: int, rows: int) -> None:
    assert loss.chunk_rows(slots, most=most) == rows


def test_fused_gradient_equals_autograd() -> None:
    head, generator = make_head(CONFIG), torch.Generator().manual_seed(0)
    hidden = torch.randn(9, CONFIG.hidden_size, generator=generator, requires_grad=True)
    labels, weights = torch.arange(9), torch.rand(9, generator=generator)
    got, hits = loss.cross_entropy(hidden, head=head, labels_R=labels, weights_R=weights)
    outer = torch.rand(9, generator=generator)
    (fused,) = torch.autograd.grad((got * outer).sum(), hidden)
    logits = hidden @ head.head_VD.T
    want = torch.nn.functional.cross_entropy(logits, labels, reduction="none") * weights
    (plain,) = torch.autograd.grad((want * outer).sum(), hidden)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(fused, plain)
    assert torch.equal(hits, logits.argmax(-1) == labels)


def test_figures_equal_the_loop() -> None:
    rows = random_row(CONFIG, seed=8)
    blocks = blocks_of(rows)
    guess = blocks.labels_BNJ.clone()
    guess[0, :, 2] += 1  # right in slots 1 and 2, wrong in 3
    head = make_head(CONFIG)
    with torch.no_grad():
        result = loss.terms(
            _Fixed(CONFIG, guess % CONFIG.vocab_size),
            head=loss.FrozenHead(embedding_VD=head.embedding_VD, head_VD=torch.eye(CONFIG.vocab_size)),
            hidden_BSC=rows.hidden_BSC,
            blocks=blocks,
            attend=sdpa(blocks.rule, dtype=torch.float32),
        )
    whole = int(blocks.valid_BNJ.all(-1).sum())
    assert whole > 0
    assert int(result.blocks_B) == whole
    assert int(result.accepted_B) == 3 * whole  # two right guesses and the bonus token
    counts = blocks.valid_BNJ.sum(1)[0].tolist()
    assert result.labels_BJ[0].tolist() == counts
    assert result.hits_BJ[0].tolist() == [counts[0], counts[1], 0, counts[3]]


class _Fixed(Drafter):
    """A drafter that answers one-hot hidden states."""

    def __init__(self, config: object, guess_BNJ: torch.Tensor) -> None:
        super().__init__(config)  # type: ignore[arg-type]
        self.guess_BNJ = guess_BNJ

    def forward(self, noise_BQD: torch.Tensor, **_: object) -> torch.Tensor:
        """One-hot states of the guesses."""
        first = torch.zeros_like(self.guess_BNJ[..., :1])
        ids = torch.cat([first, self.guess_BNJ], dim=-1).flatten(1)
        return torch.nn.functional.one_hot(ids, CONFIG.vocab_size).to(noise_BQD.dtype) * 9


def test_attention_is_counted_once_a_layer() -> None:
    rows, counter = random_row(CONFIG, seed=1), AttentionCounter()
    blocks = blocks_of(rows)
    attend = sdpa(blocks.rule, dtype=torch.float32, counter=counter)
    loss.terms(
        make_drafter(CONFIG), head=make_head(CONFIG), hidden_BSC=rows.hidden_BSC, blocks=blocks, attend=attend
    )
    assert counter.calls == CONFIG.layers
