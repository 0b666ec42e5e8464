"""Targets of every promised family: what is captured, rows as documents alone, no layer too many."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from dflash_runner import capture, head
from dflash_runner.decode import plain, speculative
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.frozen import FrozenTarget
from dflash_runner.model import DrafterConfig
from dflash_runner.packing import Packed
from dflash_runner.serving import ServingDrafter
from dflash_runner.warmup_target import TargetSubject, difference, tolerance_of
from families import (
    DENSE,
    FAMILIES,
    LAYERS,
    LENGTHS,
    VOCABULARY,
    WINDOW,
    WINDOWED,
    config_of,
    make,
    row_of,
    wrapped_config,
)
from numerics import make_drafter
from torch import Tensor, nn

IDS = (1, 2, 4)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
EVERY = pytest.mark.parametrize("name", FAMILIES)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every family's model, in a directory of its name."""
    root = tmp_path_factory.mktemp("families")
    for name in FAMILIES:
        make(name).save_pretrained(root / name)
    return root


def read(saved: Path, name: str, *, dtype: torch.dtype = torch.float32, whole: bool = True) -> FrozenTarget:
    """A family's target."""
    return FrozenTarget(saved / name, dtype=dtype, layer_ids=IDS, whole=whole)


def alone(model: nn.Module, tokens_S: Tensor) -> Tensor:
    """hidden_SC of one document by the family's own whole forward, without any of our code."""
    output = model(input_ids=tokens_S[None].long(), output_hidden_states=True, use_cache=False)
    return torch.cat([output.hidden_states[i + 1] for i in IDS], dim=-1)[0]


def spans(lengths: tuple[int, ...] = LENGTHS) -> list[slice]:
    """Where each document is in its row."""
    return [slice(sum(lengths[:i]), sum(lengths[: i + 1])) for i in range(len(lengths))]


@EVERY
@DTYPES
def test_captured_states_are_the_familys_own(saved: Path, name: str, dtype: torch.dtype) -> None:
    """Bit for bit hidden_states[id + 1], for a row that is one document."""
    target = read(saved, name, dtype=dtype)
    row = row_of((23,), padding=0)
    assert torch.equal(target.hidden_states(row), alone(target.model, row.tokens_S))


@EVERY
@DTYPES
def test_packed_equals_separate(saved: Path, name: str, dtype: torch.dtype) -> None:
    """In float32 to a hundredth of what warm-up allows, in bfloat16 to that; padding is zero."""
    target = read(saved, name, dtype=dtype)
    bound = 2e-6 if dtype == torch.float32 else tolerance_of(target)
    for seed in range(3):
        row = row_of(seed=seed)
        got_SC = target.hidden_states(row)
        for span in spans():
            want_SC = alone(target.model, row.tokens_S[span])
            assert difference(got_SC[span], want_SC, layers=len(IDS)) <= bound
        assert not got_SC[row.documents_S < 0].any()


@EVERY
@DTYPES
def test_no_attention_crosses_a_document(saved: Path, name: str, dtype: torch.dtype) -> None:
    """Whatever stands in the other documents and in the padding changes no bit of a document.

    Experts compute the tokens that are sent to them together, so there the others change rounding.
    """
    target = read(saved, name, dtype=dtype)
    row, other = row_of(), row_of(seed=1)
    got_SC = target.hidden_states(row)
    for span in spans():
        tokens_S = other.tokens_S.clone()
        tokens_S[span] = row.tokens_S[span]
        again_SC = target.hidden_states(dataclasses.replace(row, tokens_S=tokens_S))
        if name in DENSE:
            assert torch.equal(again_SC[span], got_SC[span])
        else:
            bound = 2e-6 if dtype == torch.float32 else tolerance_of(target)
            assert difference(again_SC[span], got_SC[span], layers=len(IDS)) <= bound


@pytest.mark.gpu
@EVERY
@DTYPES
def test_packed_equals_separate_on_a_gpu(saved: Path, name: str, dtype: torch.dtype) -> None:
    """The same bounds as warm-up's, by kernels that tile and round otherwise, in longer rows."""
    target = read(saved, name, dtype=dtype)
    target.model.to("cuda")
    lengths = (70, 1, 33, 128, 9)
    row = row_of(lengths, padding=15)
    row = Packed(
        tokens_S=row.tokens_S.cuda(), loss_mask_S=row.loss_mask_S.cuda(), documents_S=row.documents_S.cuda()
    )
    got_SC = target.hidden_states(row)
    worst, bound = 0.0, tolerance_of(target)
    for span in spans(lengths):
        worst = max(worst, difference(got_SC[span], alone(target.model, row.tokens_S[span]), layers=len(IDS)))
    assert worst <= bound


def test_positions_begin_again_with_every_document() -> None:
    """Also with documents of one token, and once for all padding."""
    assert row_of((3, 1, 1, 2), padding=3).positions().tolist() == [[0, 1, 2, 0, 0, 0, 1, 0, 1, 2]]


@pytest.mark.parametrize("name", WINDOWED)
def test_windows_bind(saved: Path, name: str) -> None:
    """The windows of these models do hide something, in the last document as in the first."""
    target = read(saved, name)
    assert target.window == WINDOW
    config = config_of(name)
    config.sliding_window = 200
    wide = type(target.model)(config).eval().requires_grad_(False)
    wide.load_state_dict(target.model.state_dict())
    row = row_of()
    got_SC = target.hidden_states(row)
    for span in (spans()[0], spans()[-1]):
        want_SC = alone(wide, row.tokens_S[span])
        inside, beyond = slice(span.start, span.start + WINDOW), slice(span.start + WINDOW, span.stop)
        assert difference(got_SC[inside], want_SC[:WINDOW], layers=len(IDS)) <= 2e-6
        assert difference(got_SC[beyond], want_SC[WINDOW:], layers=len(IDS)) > 0.1


@EVERY
def test_a_cut_target_makes_the_same_rows_of_fewer_weights(saved: Path, name: str) -> None:
    """Bit for bit; only embedding, blocks up to the last captured one and the final norm are held."""
    whole, cut = read(saved, name), read(saved, name, whole=False)
    assert torch.equal(cut.hidden_states(row_of()), whole.hidden_states(row_of()))
    held, every = cut.parameters(), whole.parameters()
    assert {part.split(".")[0] for part in held} == {"embed_tokens", "layers", "norm"}
    assert {int(part.split(".")[1]) for part in held if part.startswith("layers.")} == set(range(IDS[-1] + 1))
    assert all(torch.equal(tensor, every[f"model.{part}"]) for part, tensor in held.items())
    assert (cut.width, cut.text.num_hidden_layers, cut.window) == (whole.width, LAYERS, whole.window)
    with pytest.raises(WorkerError, match=r"want the whole model, got its blocks 0 to 4") as caught:
        _ = cut.model
    assert caught.value.kind is Kind.INVALID and "prompts" in caught.value.hint


def test_what_is_cut_off_is_let_go(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing refers to a later block or to the head any more."""
    gone: list[Any] = []

    def noting(model: nn.Module) -> nn.ModuleList:
        layers = capture.decoder_layers(model)
        gone.extend(weakref.ref(module) for module in (layers[IDS[-1] + 1], layers[-1], model.lm_head))
        return layers

    monkeypatch.setattr("dflash_runner.frozen.decoder_layers", noting)
    target = read(saved, "qwen3", whole=False)
    gc.collect()
    assert target.cut and len(gone) == 3 and [ref() for ref in gone] == [None] * 3


@EVERY
def test_no_block_above_the_last_captured_one_runs(saved: Path, name: str) -> None:
    """Of the whole model, for a row; nor the final norm, nor the head."""
    target = read(saved, name)
    ran: list[int] = []
    watched = [*capture.decoder_layers(target.model), target.decoder.norm, target.model.lm_head]
    for place, module in enumerate(watched):
        module.register_forward_hook(lambda *_, place=place: ran.append(place))
    target.hidden_states(row_of())
    assert ran == list(range(IDS[-1] + 1))
    target.model(input_ids=torch.tensor([[3, 4]]))
    assert ran[IDS[-1] + 1 :] == list(range(LAYERS + 2))


@EVERY
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "cut"])
@DTYPES
def test_warm_up_sees_leaks(
    saved: Path, name: str, dtype: torch.dtype, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right as it is, and found where positions run on, which lets documents see each other."""
    subject = subject_of(read(saved, name, dtype=dtype, whole=whole))
    right = subject.oracle()
    assert right.largest <= right.tolerance
    monkeypatch.setattr(Packed, "positions", lambda row: torch.arange(len(row.tokens_S))[None])
    assert subject.oracle().largest > 5 * right.tolerance


@pytest.mark.parametrize("name", WINDOWED)
@DTYPES
def test_warm_up_sees_a_lost_window(
    saved: Path, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One mask for every layer, which is what a model makes of a mask that it is handed."""
    target = read(saved, name, dtype=dtype)
    real = target.decoder.forward

    def forward(**given: Any) -> Any:
        begin_S = given["position_ids"][0] == 0
        document_S = begin_S.cumsum(0)
        given["attention_mask"] = (document_S[:, None] == document_S).tril()[None, None]
        return real(**given)

    def lost(row: Packed) -> Tensor:
        with monkeypatch.context() as patch:
            patch.setattr(target.decoder, "forward", forward)
            return FrozenTarget.hidden_states(target, row)

    subject = subject_of(target)
    monkeypatch.setattr(target, "hidden_states", lost)
    got = subject.oracle()
    assert got.largest > got.tolerance
    monkeypatch.setattr(target, "window", None)
    assert subject.oracle().largest <= got.tolerance  # only a document longer than the window tells


def subject_of(target: FrozenTarget) -> TargetSubject:
    """A target as warm-up sees it, its rows longer than its window."""
    settings: Any = SimpleNamespace(training=SimpleNamespace(buckets=(16, 40)))
    return TargetSubject(target, configuration=settings)


@EVERY
def test_borrowed_embedding_is_raw_and_the_head_is_the_targets(saved: Path, name: str) -> None:
    """Gemma multiplies its rows by the root of the hidden size on the way in; a drafter's are never."""
    target, frozen = read(saved, name), head.load(saved / name, dtype=torch.float32)
    ids = torch.arange(3, 12)
    own, rows = target.model.get_input_embeddings()(ids), target.model.get_input_embeddings().weight[ids]
    assert torch.equal(frozen.embed(ids), rows)
    scale = 32**0.5 if name == "gemma3" else 1.0
    assert torch.allclose(own, rows * scale, rtol=1e-3) and torch.equal(own, rows) is (scale == 1.0)
    output = target.decoder(input_ids=ids[None], use_cache=False).last_hidden_state
    assert torch.equal(frozen.logits(output), target.model(input_ids=ids[None]).logits)
    assert (frozen.head_VD is frozen.embedding_VD) is target.text.tie_word_embeddings
    shared = head.of_model(target.model)
    for mine, read_again in ((shared.embedding_VD, frozen.embedding_VD), (shared.head_VD, frozen.head_VD)):
        assert torch.equal(mine, read_again)
        assert mine.data_ptr() in {tensor.data_ptr() for tensor in target.parameters().values()}


@EVERY
def test_decoding_is_lossless(saved: Path, name: str) -> None:
    """A drafter with Gemma's raw rows too; windows are exceeded and cut back."""
    target, frozen = read(saved, name), head.load(saved / name, dtype=torch.float32)
    drafter = make_drafter(drafter_config(), seed=3)
    prompt_P = row_of((9,), padding=0).tokens_S.long()
    want = plain(target.model, prompt_P=prompt_P, new_tokens=24)
    serving = ServingDrafter(drafter, head=frozen)
    assert speculative(target.model, drafter=serving, prompt_P=prompt_P, new_tokens=24).tokens == want.tokens


def drafter_config() -> DrafterConfig:
    """A small drafter for any of the families."""
    return DrafterConfig(
        layers=2,
        hidden_size=32,
        intermediate_size=40,
        heads=4,
        kv_heads=2,
        head_dim=8,
        vocab_size=VOCABULARY,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        block_size=4,
        mask_token_id=2,
        target_layer_ids=IDS,
        target_layers=LAYERS,
        max_position_embeddings=256,
    )


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gemma 3 with a vision tower, as its checkpoints come: text_config nested, names prefixed."""
    model = transformers.Gemma3ForConditionalGeneration(wrapped_config()).eval()
    text = make("gemma3")
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    directory = tmp_path_factory.mktemp("wrapped") / "target"
    model.save_pretrained(directory)
    return directory


def test_text_decoder_inside_a_multimodal_model(saved: Path, wrapped: Path) -> None:
    """The same rows as the text model's, bit for bit; a cut one holds no vision tower."""
    want_SC = read(saved, "gemma3").hidden_states(row_of())
    for whole in (True, False):
        target = FrozenTarget(wrapped, dtype=torch.float32, layer_ids=IDS, whole=whole)
        assert torch.equal(target.hidden_states(row_of()), want_SC)
        assert (target.text.hidden_size, target.window) == (32, WINDOW)
        assert any("vision" in part for part in target.parameters()) is whole
        right = subject_of(target).oracle()
        assert right.largest <= right.tolerance
    frozen, text = head.load(wrapped, dtype=torch.float32), head.load(saved / "gemma3", dtype=torch.float32)
    shared = head.of_model(FrozenTarget(wrapped, dtype=torch.float32, layer_ids=IDS).model)
    for got in (frozen, shared):
        assert torch.equal(got.embedding_VD, text.embedding_VD)
        assert torch.equal(got.head_VD, text.head_VD)


def test_decoding_by_a_multimodal_model_is_that_of_its_text(saved: Path, wrapped: Path) -> None:
    """Plain and speculative."""
    prompt_P = row_of((9,), padding=0).tokens_S.long()
    want = plain(read(saved, "gemma3").model, prompt_P=prompt_P, new_tokens=16)
    model = FrozenTarget(wrapped, dtype=torch.float32, layer_ids=IDS).model
    serving = ServingDrafter(
        make_drafter(drafter_config(), seed=3), head=head.load(wrapped, dtype=torch.float32)
    )
    assert plain(model, prompt_P=prompt_P, new_tokens=16).tokens == want.tokens
    assert speculative(model, drafter=serving, prompt_P=prompt_P, new_tokens=16).tokens == want.tokens
