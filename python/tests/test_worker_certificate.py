"""A certificate is computed: each thing that could be false is made false here, and it says so."""

from __future__ import annotations

import importlib
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.callback
from dflash_runner import attention, config, image, trainer, warmup
from dflash_runner.certificate import Certificate, Progress
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.evaluation import Evaluator
from dflash_runner.frozen import FrozenTarget
from dflash_runner.image_header import blank
from dflash_runner.orders import Evaluate
from dflash_runner.packing import Packed
from dflash_runner.target import TargetRole
from dflash_runner.trainer import Trainer
from dflash_runner.warmup import Clock, warm_up
from dflash_runner.warmup_drafter import DrafterSubject
from dflash_runner.warmup_target import TargetSubject
from dflash_runner.watch import Watch
from dflash_runner.worker.v1 import worker_pb2
from worker_host import BUCKETS, configuration, make_inputs

FLEX = importlib.import_module("torch._higher_order_ops.flex_attention")  # the attribute is the operator


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny inputs."""
    made = tmp_path_factory.mktemp("certificate")
    make_inputs(made)
    return made


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """The process's counters, taken out again afterwards."""
    monkeypatch.setattr(FLEX, "_math_attention_inner", FLEX._math_attention_inner)  # noqa: SLF001
    watch = Watch()
    yield watch
    torch._dynamo.callback.callback_handler.remove_start_callback(watch._on_compile)  # noqa: SLF001
    torch.compiler.set_stance("default")
    torch._dynamo.reset()  # noqa: SLF001


@pytest.fixture
def certify(directory: Path, watch: Watch) -> Callable[..., Certificate]:
    """Warms a drafter up, with some of its subject's methods replaced."""
    settings = config.from_message(configuration(directory))

    def run(progress: Callable[[Progress], None] = lambda _: None, **replaced: Any) -> Certificate:
        subject = DrafterSubject(Trainer(settings), configuration=settings)
        for name, make in replaced.items():
            setattr(subject, name, make(subject, getattr(subject, name)))
        return warm_up(subject, configuration=settings, watch=watch, clock=Clock(0.0), progress=progress)

    return run


def test_holds_for_a_drafter(certify: Callable[..., Certificate]) -> None:
    """Everything true, and progress over both passes and the oracle, in order."""
    told: list[Progress] = []
    states: list[tuple[torch.Tensor, object]] = []

    def progress(at: Progress) -> None:
        told.append(at)
        states.append((torch.get_rng_state(), random.getstate()))

    certificate = certify(progress)
    assert certificate.digest_before == certificate.digest_after
    assert (certificate.gradients, certificate.padded_anchors) == (True, True)
    assert certificate.attention_calls == 2 * len(BUCKETS) * 2
    assert certificate.dense_difference <= certificate.dense_tolerance
    assert (certificate.first_pass_compiles, certificate.second_pass_compiles) == (0, 0)
    assert torch.equal(torch.get_rng_state(), states[0][0])
    assert random.getstate() == states[0][1]
    phases = [progress.phase for progress in told]
    assert phases == ["first_pass"] * 3 + ["oracle"] * 2 + ["record"] * 3 + ["second_pass"] * 3


def test_training_after_it_is_as_without_it(certify: Callable[..., Certificate], directory: Path) -> None:
    """Parameters, moments and the optimiser's count are really those from before, also after a load."""
    settings = config.from_message(configuration(directory))
    kept: list[DrafterSubject] = []

    def keep(subject: DrafterSubject, run: Any) -> Any:
        kept.append(subject)
        return run

    certify(run=keep)
    fresh = DrafterSubject(Trainer(settings), configuration=settings)
    for subject in (kept[0], fresh):
        subject.run(BUCKETS[0])
        subject.run(BUCKETS[1])
    one, other = kept[0].state(), fresh.state()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_digest_tells_what_was_not_restored(certify: Callable[..., Certificate]) -> None:
    """A parameter, a moment, the count or a generator that differs afterwards shows."""

    def forgets(name: str) -> Any:
        def make(subject: DrafterSubject, restore: Any) -> Any:
            def run(saved: dict[str, torch.Tensor]) -> None:
                restore({**saved, name: subject.state()[name].clone()})

            return run

        return make

    for name in ("master.fc.weight", "exp_avg_sq.norm.weight", "step"):
        certificate = certify(restore=forgets(name))
        assert certificate.digest_before != certificate.digest_after, name


def test_counts_attention_that_did_not_run(certify: Callable[..., Certificate]) -> None:
    """A bucket that is skipped in one pass is missing in the count, and has no gradients."""
    runs: list[int] = []

    def skips(_: DrafterSubject, run: Any) -> Any:
        def sometimes(bucket: int) -> warmup.Ran:
            runs.append(bucket)
            nothing = warmup.Ran(gradients=False, padded_anchors=True, step_ms=1.0)
            return nothing if len(runs) == 3 else run(bucket)

        return sometimes

    certificate = certify(run=skips)
    assert runs == [*BUCKETS, *BUCKETS]
    assert certificate.attention_calls == 2 * 3
    assert not certificate.gradients


def test_tells_gradients_that_were_off(certify: Callable[..., Certificate], monkeypatch: Any) -> None:
    """An optimiser that does nothing moves no parameter."""
    monkeypatch.setattr(Trainer, "apply", lambda self, *, lr: self.drop())  # noqa: ARG005
    assert not certify().gradients


def test_tells_rows_without_padding_anchors(certify: Callable[..., Certificate], monkeypatch: Any) -> None:
    """A row whose anchor places are all taken proves nothing about padding."""
    real = Trainer.micro_step

    def full(self: Trainer, *args: Any, **kwargs: Any) -> int:
        real(self, *args, **kwargs)
        return 8

    monkeypatch.setattr(Trainer, "micro_step", full)
    assert not certify().padded_anchors


def test_oracle_sees_a_wrong_mask(certify: Callable[..., Certificate], monkeypatch: Any) -> None:
    """A leaked context token, another document's, and a causal block are all far from the loops."""
    real = attention.Rule.dense_mask
    wrongs = {
        "the anchor itself leaks": lambda m: m | torch.roll(m, 1, dims=-1),
        "everything is seen": lambda m: torch.ones_like(m),
        "the block is causal": lambda m: m & ~torch.ones_like(m).triu(diagonal=m.shape[-1] - m.shape[-2] + 1),
    }
    for name, wrong in wrongs.items():
        monkeypatch.setattr(attention.Rule, "dense_mask", lambda self, w=wrong: w(real(self)))
        certificate = certify()
        assert certificate.dense_difference > certificate.dense_tolerance, name


def test_oracle_sees_a_wrong_gradient(certify: Callable[..., Certificate], monkeypatch: Any) -> None:
    """A right forward with a wrong backward is not enough."""
    real = attention.sdpa

    def cut(*args: Any, **kwargs: Any) -> Any:
        attend = real(*args, **kwargs)
        return lambda query, key, value: attend(query, key.detach() + 0 * key, value)

    monkeypatch.setattr(attention, "sdpa", cut)
    certificate = certify()
    assert certificate.dense_difference > certificate.dense_tolerance


def test_counts_compiles(certify: Callable[..., Certificate]) -> None:
    """A compile in the second pass is counted, and so are graphs."""
    compiled = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
    runs: list[int] = []

    def compiles(_: DrafterSubject, run: Any) -> Any:
        def also(bucket: int) -> warmup.Ran:
            runs.append(bucket)
            compiled(torch.ones(len(runs)))  # another shape every time
            return run(bucket)

        return also

    certificate = certify(run=compiles)
    assert certificate.first_pass_compiles == 2
    assert certificate.second_pass_compiles == 2
    assert certificate.graphs == 4
    assert certificate.cache != warmup.CACHE_NONE


def test_a_compile_after_it_fails_every_order(certify: Callable[..., Certificate], watch: Watch) -> None:
    """I3: refused when it happens, and on record for ever."""
    compiled = torch.compile(lambda x: x - 1, backend="eager")
    certify()
    watch.check()
    with pytest.raises(RuntimeError, match="fail_on_recompile"):
        compiled(torch.ones(3))
    torch.compiler.set_stance("default")
    compiled(torch.ones(3))  # as one that slipped through would
    for _ in range(2):
        with pytest.raises(WorkerError, match="compile contract") as violated:
            watch.check()
        assert violated.value.kind is Kind.FATAL


def test_dense_flex_attention_is_refused(watch: Watch) -> None:
    """The dense path raises, is counted, and breaks the contract once it is sealed."""
    watch.seal()
    torch.compiler.set_stance("default")
    with pytest.raises(WorkerError, match="ran dense"):
        FLEX._math_attention_inner()  # noqa: SLF001
    assert watch.dense_calls == 1
    with pytest.raises(WorkerError, match="got 0 and 1"):
        watch.check()


def test_fingerprint_is_of_shapes_alone(directory: Path) -> None:
    """Peers share it; a shape, dtype or number of threads changes it."""
    base = configuration(directory, world_size=2)

    def of(**changes: Any) -> str:
        message = worker_pb2.Configuration()
        message.CopyFrom(base)
        for name, value in changes.items():
            part, _, field = name.partition("__")
            if field:
                setattr(getattr(message, part), field, value)
            else:
                setattr(message, part, value)
        return warmup.fingerprint(config.from_message(message), {"layers": 2})

    assert of() == of(rank=1, seed=5, generation=3, communicator_directory="/elsewhere")
    same = {of(), of(threads=2), of(training__anchors=9), of(training__compute_dtype="bfloat16"), of(role=1)}
    assert len(same) == 5
    other = warmup.fingerprint(config.from_message(base), {"layers": 3})
    assert other != of()


@pytest.fixture(scope="module")
def target(directory: Path) -> FrozenTarget:
    """The tiny target, read from its directory."""
    return FrozenTarget(directory / "target", dtype=torch.float32, layer_ids=(1, 2, 3))


def test_target_holds_and_its_oracle_sees_leaks(
    directory: Path, target: FrozenTarget, watch: Watch, monkeypatch: Any
) -> None:
    """Packed as alone; positions that run on, and with them the mask, are found."""
    settings = config.from_message(configuration(directory, role=worker_pb2.ROLE_TARGET))
    subject = TargetSubject(target, configuration=settings)
    certificate = warm_up(
        subject, configuration=settings, watch=watch, clock=Clock(0.0), progress=lambda _: None
    )
    assert certificate.digest_before == certificate.digest_after
    assert certificate.attention_calls == 4 * len(BUCKETS) * 2
    assert certificate.dense_difference <= certificate.dense_tolerance
    assert (certificate.gradients, certificate.padded_anchors) == (False, False)
    assert not subject.changing()  # frozen weights are never copied
    with monkeypatch.context() as patch:
        patch.setattr(Packed, "positions", lambda row: torch.arange(len(row.tokens_S))[None])
        leaked = subject.oracle()
    assert leaked.largest > leaked.tolerance


@pytest.mark.parametrize("prompts", [True, False])
def test_a_target_holds_the_whole_model_only_to_decode(
    directory: Path, watch: Watch, prompts: bool, monkeypatch: Any
) -> None:
    """Without prompts, no block above the last captured one is kept; it is certified all the same."""
    monkeypatch.setattr("dflash_runner.target.prepare_torch", lambda _: None)  # of this process
    monkeypatch.setattr("dflash_runner.target.Watch", lambda: watch)
    message = configuration(directory, role=worker_pb2.ROLE_TARGET)
    if not prompts:
        message.prompts = ""
    saved: list[dict[str, torch.Tensor]] = []
    digest = image.tensors_digest

    def note(tensors: dict[str, torch.Tensor]) -> bytes:
        saved.append(tensors)
        return digest(tensors)

    monkeypatch.setattr("dflash_runner.target.image.tensors_digest", note)
    role = TargetRole(config.from_message(message), started=0.0)
    role.built()
    blocks = {name.split("layers.")[1].split(".")[0] for name in saved[0] if "layers." in name}
    assert blocks == {str(i) for i in range(5 if prompts else 4)}
    assert any("lm_head" in name for name in saved[0]) is prompts
    certificate = role.warm_up(lambda _: None)
    assert certificate.dense_difference <= certificate.dense_tolerance


def test_held_out_loss_needs_no_whole_target(directory: Path) -> None:
    """A cut target gives the same loss; decoding by it is refused, with the reason."""
    message = configuration(directory, role=worker_pb2.ROLE_TARGET)
    settings = config.from_message(message)
    drafter = Trainer(config.from_message(configuration(directory)))
    state, digest = drafter.state(), drafter.parameters_digest()
    nbytes = image.image_bytes(state)
    fd = os.memfd_create("image")
    os.ftruncate(fd, nbytes)
    image.write(fd, nbytes=nbytes, state=state, head=replace(blank(), parameters=digest))
    ask = {"seq": 1, "step": 0, "first": 0, "count": 2, "new_tokens": 4, "nbytes": nbytes}
    losses = []
    for whole in (True, False):
        target = FrozenTarget(directory / "target", dtype=torch.float32, layer_ids=(1, 2, 3), whole=whole)
        evaluator = Evaluator(target, configuration=settings)
        reply = evaluator.evaluate(Evaluate(**ask, what="loss"), fd=fd)
        losses.append((reply.numerator, reply.denominator))
    os.close(fd)
    assert losses[0] == losses[1] and losses[0][1] > 0
    with pytest.raises(WorkerError, match="want the whole model, got its blocks 0 to 3"):
        evaluator.evaluate(Evaluate(**ask | {"nbytes": 0}, what="plain"), fd=None)


def test_masters_are_not_rounded(directory: Path) -> None:
    """A compute dtype below float32 leaves the masters, and their digest, exact."""
    message = configuration(directory)
    exact = Trainer(config.from_message(message))
    message.training.compute_dtype = "bfloat16"
    rounded = Trainer(config.from_message(message))
    assert rounded.dtype is torch.bfloat16
    assert exact.parameters_digest() == rounded.parameters_digest()


def test_drafter_starts_from_an_export(directory: Path, tmp_path: Path) -> None:
    """`init_from` gives the exported weights, and refuses those of another shape by their field."""
    from dflash_runner.export import export

    message = configuration(directory, seed=77)
    first = Trainer(config.from_message(message))
    export(first.optimiser.masters(), config=first.config, directory=tmp_path / "out", dtype=torch.float32)
    message.seed = 78
    message.drafter.init_from = str(tmp_path / "out")
    assert Trainer(config.from_message(message)).parameters_digest() == first.parameters_digest()
    message.drafter.block_size = 5
    with pytest.raises(ValueError, match="block_size: want 5, got 4"):
        Trainer(config.from_message(message))


def test_drafter_refuses_another_targets_head(directory: Path) -> None:
    """A vocabulary that is not the target's is told with both sizes."""
    message = configuration(directory)
    message.drafter.vocab_size = 70
    with pytest.raises(ValueError, match=r"want \(67, 32\).* got \(70, 32\)"):
        trainer.Trainer(config.from_message(message))
