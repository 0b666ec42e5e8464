"""A target's rows by compiled parts, with a fake compiler, in every promised family: what they compute, that
nothing else of the model changes, the certificate, replays, and what is refused.

`test_recorded_gpu` has the real kernels.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dflash_runner import config, image, row_kernels, row_tiles, tiles
from dflash_runner.certificate import Certificate
from dflash_runner.config import Configuration
from dflash_runner.decode import plain
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.evaluation import Evaluator
from dflash_runner.frozen import FrozenTarget
from dflash_runner.orders import Evaluate
from dflash_runner.packing import Packed
from dflash_runner.recorded import RecordedRows
from dflash_runner.row_kernels import RowKernels
from dflash_runner.target import TargetRole
from dflash_runner.trainer import Trainer
from dflash_runner.warmup import Clock, warm_up
from dflash_runner.warmup_target import TargetSubject, difference, tolerance_of
from dflash_runner.watch import Watch
from dflash_runner.worker.v1 import worker_pb2
from fake_compiler import NAMES, FakeCompiler
from families import FAMILIES, TILED_HEADS, WINDOWED, make, row_of
from flex_worker import MARKS, watching
from tape import TapeRecorder
from torch import Tensor, nn
from worker_host import LAYER_IDS, VOCABULARY, configuration, make_inputs, memfd

pytestmark = MARKS

IDS = (1, 2, 4)
BUCKETS = (200, 384)
EVERY = pytest.mark.parametrize("name", FAMILIES)
ROWS = {
    "three": row_of((200, 40, 90), padding=54),
    "one": row_of((384,), padding=0, seed=1),
    "many": row_of((1,) * 20 + (7,) * 10 + (130, 129), padding=35, seed=2),
}


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """The process's counters."""
    with watching(monkeypatch) as watch:
        yield watch


@functools.cache
def model_of(name: str) -> nn.Module:
    """A family's model, in bfloat16, with heads that kernels take."""
    return make(name, head_dim=TILED_HEADS).to(torch.bfloat16)


def target_of(name: str) -> tuple[FrozenTarget, FakeCompiler]:
    """A family's target whose rows are compiled, and the compiler."""
    target, compiler = FrozenTarget.of_model(model_of(name), layer_ids=IDS), FakeCompiler()
    target.compile_rows(backend=compiler)
    return target, compiler


@dataclasses.dataclass(kw_only=True)
class Worker:
    """A target as its role has it, and what it would do with it."""

    target: FrozenTarget
    compiler: FakeCompiler
    subject: TargetSubject
    rows: RecordedRows | None
    settings: Configuration
    watch: Watch

    def certify(self) -> Certificate:
        """Warm up; afterwards the watch is sealed."""
        return warm_up(
            self.subject,
            configuration=self.settings,
            watch=self.watch,
            clock=Clock(0.0),
            progress=lambda _: None,
        )


def worker_of(name: str, directory: Path, watch: Watch, *, replay: bool = True) -> Worker:
    """Not warmed up."""
    target, compiler = target_of(name)
    rows = RecordedRows(target, recorder=TapeRecorder()) if replay else None
    settings = settings_in(directory)
    subject = TargetSubject(target, configuration=settings, recorded=rows)
    return Worker(
        target=target, compiler=compiler, subject=subject, rows=rows, settings=settings, watch=watch
    )


def settings_in(directory: Path) -> Configuration:
    """A target's, as on a GPU but for the device, which no message may say."""
    message = configuration(directory, role=worker_pb2.ROLE_TARGET)
    message.target.dtype = "bfloat16"
    del message.training.buckets[:]
    message.training.buckets.extend(BUCKETS)
    return dataclasses.replace(config.from_message(message), attention="flex")


@EVERY
def test_rows_are_those_of_the_models_own_attention(watch: Watch, name: str) -> None:
    """To what warm-up allows, windows among them; padding is zero; one graph a part and length."""
    target, compiler = target_of(name)
    parts = len(target.kernels.parts)
    assert parts == (3 if "llama" in name or name.startswith("mistral") else 5)
    for row in ROWS.values():
        got_SC, own_SC = target.hidden_states(row), target.own_hidden_states(row)
        used = int((row.documents_S >= 0).sum())
        assert difference(got_SC[:used], own_SC[:used], layers=len(IDS)) <= tolerance_of(target)
        assert not got_SC[used:].any() and got_SC[:used].any(dim=1).all()
    assert (compiler.graphs, compiler.ran) == (parts, len(ROWS) * (IDS[-1] + 1))
    target.hidden_states(row_of((150, 30), padding=20))
    assert (compiler.graphs, watch.dense_calls) == (2 * parts, 0)
    assert target.kernels.counter.calls == compiler.ran == (len(ROWS) + 1) * (IDS[-1] + 1)


@EVERY
def test_nothing_else_of_the_model_changes(watch: Watch, name: str) -> None:
    """Not a bit of its own rows, of documents alone and of decoding, nor of another model of the family."""
    del watch
    target, compiler = target_of(name)
    other = FrozenTarget.of_model(model_of(name), layer_ids=IDS)
    row, prompt_P = ROWS["three"], row_of((9,), padding=0).tokens_S.long()
    own_SC, text = other.hidden_states(row), plain(other.model, prompt_P=prompt_P, new_tokens=12)
    target.hidden_states(row)
    graphs = compiler.graphs
    assert torch.equal(target.own_hidden_states(row), own_SC) and torch.equal(
        other.hidden_states(row), own_SC
    )
    assert torch.equal(target.run(row.tokens_S[:200]), other.run(row.tokens_S[:200]))
    assert plain(target.model, prompt_P=prompt_P, new_tokens=12) == text
    assert compiler.graphs == graphs
    assert not any("forward" in vars(module) for module in target.model.modules())


def test_the_model_is_whole_again_after_a_row_that_failed(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention, norms and the rotation are its own."""
    del watch
    target, _ = target_of("qwen3")
    own_SC = target.own_hidden_states(ROWS["three"])
    attention = target.text._attn_implementation  # noqa: SLF001

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(target.decoder.layers[2].mlp, "forward", fail)
        with pytest.raises(RuntimeError, match="out of luck"):
            target.hidden_states(ROWS["three"])
    assert target.text._attn_implementation == attention == "sdpa"  # noqa: SLF001
    assert torch.equal(target.own_hidden_states(ROWS["three"]), own_SC)
    from transformers import AttentionInterface

    with pytest.raises(AssertionError, match="want a row being made"):
        AttentionInterface()[row_kernels.NAME]()


@EVERY
def test_replays_have_the_bits_of_rows_as_they_come(watch: Watch, name: str) -> None:
    """Whatever documents were recorded: the tiles are the row's own. Calls are counted as ever."""
    del watch
    target, compiler = target_of(name)
    rows = RecordedRows(target, recorder=TapeRecorder())
    rows.hidden_states(ROWS["many"])
    graphs, calls = compiler.graphs, target.kernels.counter.calls
    rows.record(ROWS["many"])
    assert target.kernels.counter.calls == calls
    for row in (*ROWS.values(), ROWS["many"]):
        got_SC = rows.hidden_states(row).clone()
        calls += IDS[-1] + 1
        assert target.kernels.counter.calls == calls
        assert torch.equal(got_SC, target.hidden_states(row))
        calls += IDS[-1] + 1
    assert (compiler.graphs, rows.replayed_calls) == (graphs, 0)


@pytest.mark.parametrize(
    ("name", "replay"), [*((name, True) for name in FAMILIES), ("qwen3", False), ("gemma3", False)]
)
def test_warm_up_certifies(tmp_path: Path, watch: Watch, name: str, replay: bool) -> None:
    """One set of graphs a bucket and one for the oracle, and none after; nor by rows and decoding then."""
    worker = worker_of(name, tmp_path, watch, replay=replay)
    parts, layers = len(worker.target.kernels.parts), IDS[-1] + 1
    certificate = worker.certify()
    assert certificate.attention == "flex"
    assert certificate.graphs == worker.compiler.graphs == (len(BUCKETS) + 1) * parts
    assert (certificate.dense_calls, certificate.second_pass_compiles) == (0, 0)
    assert certificate.first_pass_compiles == len(BUCKETS) * parts
    assert certificate.attention_calls == 2 * len(BUCKETS) * layers
    assert certificate.digest_before == certificate.digest_after
    assert certificate.dense_difference <= certificate.dense_tolerance
    assert (certificate.gradients, certificate.padded_anchors) == (False, False)
    if not replay:
        assert certificate.kernels == NAMES[:1]  # a tape's replay is no kernel's run
    ran = worker.compiler.graphs
    made = worker.rows or worker.target
    for row in (*ROWS.values(), row_of((100, 60), padding=40)):
        made.hidden_states(row)
    plain(worker.target.model, prompt_P=ROWS["one"].tokens_S[:9].long(), new_tokens=8)
    worker.watch.check()
    assert worker.compiler.graphs == ran


def test_a_length_that_warm_up_did_not_run_is_refused(tmp_path: Path, watch: Watch) -> None:
    """And every row after it, recorded ones too: a replay runs nothing that could refuse by itself."""
    worker = worker_of("qwen3", tmp_path, watch)
    worker.certify()
    with pytest.raises(WorkerError, match="fail_on_recompile"):
        worker.rows.hidden_states(row_of((100,), padding=28))
    with pytest.raises(WorkerError, match="refused before") as refused:
        worker.rows.hidden_states(ROWS["one"])
    assert refused.value.kind is Kind.FATAL


def test_held_out_samples_are_rows_of_the_models_own(tmp_path: Path, watch: Watch) -> None:
    """Each has a length of its own, which no warm-up ran: nothing compiles, and the loss is that of a target
    whose rows are not compiled."""
    make_inputs(tmp_path)
    sizes = {"hidden_size": 32, "vocab_size": VOCABULARY, "head_dim": TILED_HEADS}
    model = make("qwen3", **sizes).to(torch.bfloat16)
    settings = config.from_message(configuration(tmp_path, role=worker_pb2.ROLE_TARGET))
    drafter = Trainer(config.from_message(configuration(tmp_path)))
    state, nbytes = drafter.state(), image.image_bytes(drafter.state())
    head = image.Head(step=0, optimizer_step=0, chain=bytes(32), parameters=drafter.parameters_digest())
    fd = memfd("image", nbytes)
    image.write(fd, nbytes=nbytes, state=state, head=head)
    ask = {"seq": 1, "step": 0, "first": 0, "count": 2, "new_tokens": 4, "nbytes": nbytes, "what": "loss"}
    compiler, losses = FakeCompiler(), []
    for compiled in (False, True):
        target = FrozenTarget.of_model(model, layer_ids=LAYER_IDS)
        if compiled:
            target.compile_rows(backend=compiler)
            watch.seal()
        reply = Evaluator(target, configuration=settings).evaluate(Evaluate(**ask), fd=fd)
        losses.append((reply.numerator, reply.denominator))
    os.close(fd)
    watch.check()
    assert losses[0] == losses[1] and losses[0][1] > 0
    assert compiler.graphs == 0


def test_another_thread_makes_no_row(watch: Watch) -> None:
    """It would race with a compile."""
    del watch
    target, told = target_of("qwen3")[0], []

    def call() -> None:
        with pytest.raises(WorkerError, match="want the thread that made it") as refused:
            target.hidden_states(ROWS["one"])
        told.append(refused.value.kind)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert told == [Kind.FATAL]


@pytest.mark.parametrize("partial_become", ["full", "empty"])
def test_the_oracle_sees_wrong_tiles(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch, partial_become: str
) -> None:
    """A partial tile taken for a full one, or left out."""
    worker, real = worker_of("llama", tmp_path, watch), row_tiles.tiles
    right = worker.subject.oracle()
    assert right.largest <= right.tolerance

    def wrong(first_S: np.ndarray) -> tiles.Tiles:
        found = real(first_S)
        full_BMU = found.full_BMU | found.partial_BMU if partial_become == "full" else found.full_BMU
        return tiles.Tiles(partial_BMU=np.zeros_like(found.partial_BMU), full_BMU=full_BMU)

    monkeypatch.setattr(row_tiles, "tiles", wrong)
    found = worker.subject.oracle().largest
    assert not found <= 5 * right.tolerance


@pytest.mark.parametrize("name", ["qwen3", "qwen3-moe", "gemma3", "mistral"])
def test_the_oracle_sees_a_leak(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Of one document into the next; where there are tiles of all sorts, and windows."""
    worker = worker_of(name, tmp_path, watch)
    right = worker.subject.oracle()
    assert right.largest <= right.tolerance
    monkeypatch.setattr(row_tiles, "starts", lambda ids_S: np.zeros(len(ids_S), dtype=np.int32))
    assert worker.subject.oracle().largest > 2 * right.tolerance


@pytest.mark.parametrize("name", WINDOWED)
def test_the_oracle_sees_a_lost_window(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In sliding layers, or in those of both kinds."""
    worker = worker_of(name, tmp_path, watch)
    monkeypatch.setattr(row_tiles, "first_keys", lambda begin_S, window: begin_S)  # noqa: ARG005
    found = worker.subject.oracle()
    assert found.largest > 2 * found.tolerance


def test_the_oracle_sees_what_is_no_number(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a single token of the row, whoever makes it."""
    del watch
    target = FrozenTarget.of_model(model_of("qwen3"), layer_ids=IDS)
    real = target.hidden_states

    def spoilt(row: Packed) -> Tensor:
        hidden_SC = real(row)
        hidden_SC[7] = float("nan")
        return hidden_SC

    monkeypatch.setattr(target, "hidden_states", spoilt)
    found = TargetSubject(target, configuration=settings_in(tmp_path)).oracle()
    assert not found.largest <= found.tolerance


def test_the_oracle_has_tiles_of_all_sorts(tmp_path: Path, watch: Watch) -> None:
    """And rows as far from whole tiles as the first bucket's, for which kernels differ."""
    worker, seen = worker_of("qwen3", tmp_path, watch), []
    real = worker.target.hidden_states

    def note(row: Packed) -> Tensor:
        seen.append(row)
        return real(row)

    worker.subject._rows = worker.target  # noqa: SLF001 not replayed
    worker.target.hidden_states = note  # type: ignore[method-assign]
    worker.subject.oracle()
    (row,) = seen
    partial, _, full, *_ = worker.target.lists(row)
    count = -(-len(row.tokens_S) // tiles.SIZE)
    assert len(row.tokens_S) % tiles.SIZE == BUCKETS[0] % tiles.SIZE and bool((row.documents_S < 0).any())
    below = count * (count - 1) // 2
    assert 0 < int(full.sum()) < below and int(partial.sum()) + int(full.sum()) < count + below


ASKED = {
    "softcap": ({"softcap": 30.0}, "got softcap"),
    "sinks": ({"s_aux": torch.zeros(4)}, "got s_aux"),
    "a bias by place": ({"position_bias": torch.zeros(1)}, "got position_bias"),
    "weights": ({"output_attentions": True}, "got output_attentions"),
    "both ways": ({"is_causal": False}, "is_causal: want true, got false"),
    "another window": ({"sliding_window": 5}, "sliding_window: want None in a layer of its kind, got 5"),
}


@pytest.mark.parametrize("what", ASKED)
def test_what_blocks_ask_for_and_flex_does_not_do_is_refused(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """By name, with what makes such rows; nothing is left out instead. Its own way goes on."""
    del watch
    given, match = ASKED[what]
    target, compiler = target_of("llama")
    block = target.decoder.layers[1].self_attn
    real = type(block).forward
    monkeypatch.setattr(block, "forward", lambda *args, **kwargs: real(block, *args, **kwargs | given))
    with pytest.raises(WorkerError, match=match) as refused:
        target.hidden_states(ROWS["one"])
    assert refused.value.kind is Kind.INVALID and "LlamaAttention" in refused.value.message
    assert refused.value.hint == row_kernels.HINT and compiler.ran == 1


def test_dropout_is_refused(watch: Watch) -> None:
    """In whatever mode; none of it is none."""
    del watch
    block = model_of("llama").model.layers[0].self_attn
    row_kernels._check_given(block, None, {"dropout": 0.0}, window=None)  # noqa: SLF001
    with pytest.raises(WorkerError, match=r"LlamaAttention: dropout: want 0, got 0.1"):
        row_kernels._check_given(block, None, {"dropout": 0.1}, window=None)  # noqa: SLF001


def test_a_mask_of_the_models_own_is_refused(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that makes masks for every attention: nobody knows what is in them."""
    del watch
    target, _ = target_of("mistral-full")
    block = target.decoder.layers[0].self_attn
    real = type(block).forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return real(block, *args, **kwargs | {"attention_mask": torch.zeros(1, 1, 384, 384)})

    monkeypatch.setattr(block, "forward", forward)
    with pytest.raises(WorkerError, match="want no mask of the model's own, got Tensor") as refused:
        target.hidden_states(ROWS["one"])
    assert refused.value.kind is Kind.INVALID and "sdpa" in refused.value.hint


@pytest.mark.parametrize(
    ("change", "match"),
    [
        pytest.param(
            lambda target: setattr(target.decoder.layers[3].self_attn, "layer_idx", None),
            "want its layer_idx among",
            id="a block that does not say which it is",
        ),
        pytest.param(
            lambda target: target.decoder.layers[3].self_attn.train(),
            "want a model in eval mode",
            id="training",
        ),
        pytest.param(
            lambda target: setattr(target.decoder.layers[3].self_attn, "is_causal", False),
            "is_causal: want true",
            id="a block that sees both ways",
        ),
    ],
)
def test_blocks_that_are_not_as_they_seem_are_refused(
    watch: Watch, change: Callable[[FrozenTarget], None], match: str
) -> None:
    """Of a decoder with several kinds of layers."""
    del watch
    target = FrozenTarget.of_model(make("gemma3", head_dim=TILED_HEADS).to(torch.bfloat16), layer_ids=IDS)
    target.compile_rows(backend=FakeCompiler())
    change(target)
    with pytest.raises(WorkerError, match=match) as refused:
        target.hidden_states(ROWS["one"])
    assert refused.value.kind is Kind.INVALID and "sdpa" in refused.value.hint


def test_attention_that_is_called_otherwise_is_refused(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """By blocks of which one calls nothing that can be put in its place."""
    del watch
    target, _ = target_of("qwen3")
    block = target.decoder.layers[2].self_attn
    monkeypatch.setattr(block, "forward", lambda hidden_states, **_: (hidden_states, None))
    with pytest.raises(WorkerError, match="want 5 blocks to call it, got 4 calls") as refused:
        target.hidden_states(ROWS["one"])
    assert refused.value.kind is Kind.INVALID and "sdpa" in refused.value.hint


def test_small_heads_and_float32_are_refused(watch: Watch) -> None:
    """What the kernels have no products for."""
    del watch
    small = FrozenTarget.of_model(make("qwen3").to(torch.bfloat16), layer_ids=IDS)
    small.compile_rows(backend=FakeCompiler())
    with pytest.raises(WorkerError, match="head size: want at least 16, got 12"):
        small.hidden_states(ROWS["one"])
    exact = FrozenTarget.of_model(make("qwen3", head_dim=TILED_HEADS), layer_ids=IDS)
    with pytest.raises(WorkerError, match=r"want weights in torch.bfloat16, got torch.float32") as refused:
        exact.compile_rows(backend=FakeCompiler())
    assert refused.value.kind is Kind.INVALID and refused.value.hint == row_kernels.HINT


def test_what_cannot_be_compiled_stays_the_models_own(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rotation that is no plain function, as where a library of kernels wraps it: said by the parts, which
    the fingerprint has."""
    del watch
    target = FrozenTarget.of_model(model_of("llama"), layer_ids=IDS)
    family = __import__(type(target.decoder).__module__, fromlist=["x"])
    monkeypatch.setattr(family, "apply_rotary_pos_emb", functools.partial(family.apply_rotary_pos_emb))
    target.compile_rows(backend=FakeCompiler())
    assert target.kernels.parts == ("attention", "hidden norm by LlamaRMSNorm")
    got_SC, own_SC = target.hidden_states(ROWS["one"]), target.own_hidden_states(ROWS["one"])
    assert difference(got_SC, own_SC, layers=len(IDS)) <= tolerance_of(target)


def test_tolerances_follow_the_depth(watch: Watch) -> None:
    """As the root of how many blocks a row goes through, from six on, and never as far as a lost window."""
    del watch

    class Deep(FrozenTarget):
        def __init__(self, target: FrozenTarget, blocks: int) -> None:
            self.text, self.dtype, self.layer_ids = target.text, target.dtype, (blocks - 1,)

    target = FrozenTarget.of_model(model_of("qwen3"), layer_ids=IDS)
    found = {blocks: tolerance_of(Deep(target, blocks)) for blocks in (1, 6, 24, 34, 200)}
    assert found == pytest.approx({1: 0.05, 6: 0.05, 24: 0.1, 34: 0.119, 200: 0.15}, abs=1e-3)
    routed = FrozenTarget.of_model(model_of("qwen3-moe"), layer_ids=IDS)
    assert tolerance_of(Deep(routed, 48)) == tolerance_of(routed) == 0.15


def test_the_role_compiles_what_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With flex, and not with sdpa: the compiler is not even asked for."""
    make_inputs(tmp_path)
    monkeypatch.setattr("dflash_runner.target.prepare_torch", lambda _: None)  # of this process
    told: list[FrozenTarget] = []
    monkeypatch.setattr(FrozenTarget, "compile_rows", lambda target: told.append(target))
    with watching(monkeypatch) as watch:
        monkeypatch.setattr("dflash_runner.target.Watch", lambda: watch)
        for attention in ("sdpa", "flex"):
            settings = dataclasses.replace(settings_in(tmp_path), attention=attention)
            role = TargetRole(settings, started=0.0)
            assert told == ([] if attention == "sdpa" else [role._target])  # noqa: SLF001


def test_kernels_are_of_the_blocks_that_run(watch: Watch) -> None:
    """Norms above the last captured block, and the final one, are never called in a row: they stay."""
    del watch
    target = FrozenTarget.of_model(model_of("qwen3"), layer_ids=(0, 1))
    kernels = RowKernels(
        target.decoder, layers=2, text=target.text, window=target.window, backend=FakeCompiler()
    )
    taken = {module for module, _ in kernels._forwards}  # noqa: SLF001
    layers = target.decoder.layers
    assert taken == {
        norm
        for layer in layers[:2]
        for norm in (
            layer.input_layernorm,
            layer.post_attention_layernorm,
            layer.self_attn.q_norm,
            layer.self_attn.k_norm,
        )
    }
