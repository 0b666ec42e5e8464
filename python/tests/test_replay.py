"""A micro-step that is recorded and replayed: the same bits, the same counts, and no way around a refusal.

The device's recorder is a fake that does the recorded work again; `test_replay_gpu` has the real one.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from dflash_runner import preparation
from dflash_runner.attention import AttentionCounter
from dflash_runner.certificate import Certificate
from dflash_runner.communicator import Communicator
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.flex import Flex
from dflash_runner.operations import PLAIN
from dflash_runner.preparation import Preparation, Prepared
from dflash_runner.replay import Figures
from dflash_runner.trainer import Trainer
from dflash_runner.warmup_drafter import DrafterSubject
from fake_compiler import FakeCompiler
from flex_worker import MARKS, Worker, settings_in, watching
from torch import Tensor
from worker_host import BUCKETS

pytestmark = MARKS
CPU = torch.device("cpu")


class Again:
    """Records by doing the work, whose gradient is put back, and replays by doing it again."""

    def __init__(self) -> None:
        """Nothing is recorded."""
        self.gradient_P: Callable[[], Tensor] = lambda: torch.zeros(1)
        self.counter = AttentionCounter()
        self.replayed, self.held_bytes = 0, 7

    def record(self, work: Callable[[], Figures]) -> tuple[Callable[[], None], Figures]:
        """As a device records: nothing is computed, and figures have a place of their own."""
        before = self.gradient_P().clone()
        figures = tuple(figure.clone() for figure in work())
        self.gradient_P().copy_(before)

        def replay() -> None:
            self.replayed += 1
            calls = self.counter.calls  # a device runs kernels, and calls nothing
            for place, figure in zip(figures, work(), strict=True):
                place.copy_(figure)
            self.counter.calls = calls

        return replay, figures  # type: ignore[return-value]


class Replaying(Worker):
    """A drafter that records with `Again`."""

    def __init__(self, worker: Worker) -> None:
        """In the place of `worker`, which was not warmed up."""
        self.settings, self.watch = worker.settings, worker.watch
        self.compiler, self.recorder = FakeCompiler(), Again()
        self.flex = Flex(self.settings.flex, backend=self.compiler)
        self.trainer = Trainer(self.settings, attention=self.flex, operations=PLAIN, recorder=self.recorder)
        self.recorder.counter = self.flex.counter
        self.recorder.gradient_P = lambda: self.trainer.optimiser._gradient_P  # noqa: SLF001
        self.subject = DrafterSubject(self.trainer, configuration=self.settings)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Both:
    """One drafter, trained without replays, and another that was warmed up to replay."""

    want: list[object]
    worker: Replaying
    certificate: Certificate


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Rows come in one transfer as on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Preparation, "_there", lambda _, blocks: preparation.sent(blocks, CPU))
        settings = settings_in(tmp_path_factory.mktemp("replayed"))
        with watching(patch) as watch:
            plain = Worker(settings, watch)
            want = train(plain, steps=3, rows=5)
            worker = Replaying(plain)
            yield Both(want=want, worker=worker, certificate=worker.certify())


@pytest.fixture
def replaying(both: Both) -> Iterator[Replaying]:
    """Warmed up; whatever a test leaves open is dropped, and what it had refused is forgotten."""
    yield both.worker
    both.worker.flex._compiled._refused = ""  # noqa: SLF001
    both.worker.trainer.drop()


def rows_of(worker: Worker, *, count: int) -> list[Prepared]:
    """Different rows of all buckets."""
    found = []
    for number in range(count):
        tensors, pieces = worker.subject._row(BUCKETS[number % len(BUCKETS)])  # noqa: SLF001
        generator = torch.Generator().manual_seed(number)
        hidden = tensors["hidden"]
        tensors["hidden"] = torch.randn(hidden.shape, generator=generator).to(hidden.dtype)
        found.append(worker.trainer.prepare(tensors, epoch=number, pieces=pieces))
    return found


def train(worker: Worker, *, steps: int, rows: int) -> list[object]:
    """What some steps come to: figures, gradient before the update, and parameters after it."""
    alone, found = Communicator("", number=1, world=1, rank=0), []
    for step in range(steps):
        for number, row in enumerate(rows_of(worker, count=rows)):
            worker.trainer.micro_step(row, row=step * rows + number + 1)
        found.append(worker.trainer.reduce(alone))
        worker.trainer.apply(lr=1e-3)
        worker.watch.check()
    return [*found, worker.trainer.parameters_digest()]


def test_replayed_steps_have_the_bits_of_others(both: Both) -> None:
    """Rows of all buckets, first and later ones of a step, over several updates, from one seed."""
    before = both.worker.recorder.replayed
    assert before == 3 * len(BUCKETS)  # first, later, and the second pass
    assert train(both.worker, steps=3, rows=5) == both.want
    assert both.worker.recorder.replayed == before + 15


def test_the_certificate_counts_replayed_calls(both: Both) -> None:
    """Each bucket once in the first pass and once, replayed, in the second; recording counts for nothing."""
    certificate, layers = both.certificate, both.worker.trainer.attention_layers
    assert certificate.attention_calls == 2 * len(BUCKETS) * layers
    assert (certificate.dense_calls, certificate.second_pass_compiles) == (0, 0)
    assert (certificate.gradients, certificate.padded_anchors) == (True, True)
    assert certificate.digest_before == certificate.digest_after
    assert both.worker.subject.held_bytes() == 0  # alone: no pass is run beside the recordings any more


def test_a_drafter_with_peers_goes_both_ways_in_warm_up(
    replaying: Replaying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last row of its steps is not replayed: that way is run after recording too, and what recordings
    hold comes on top."""
    monkeypatch.setattr(
        replaying.subject, "_configuration", dataclasses.replace(replaying.settings, world_size=2)
    )
    calls, replayed = replaying.flex.counter.calls, replaying.recorder.replayed
    replaying.subject.record(BUCKETS[0])
    assert replaying.flex.counter.calls == calls + 3 * replaying.trainer.attention_layers
    assert replaying.recorder.replayed == replayed + 2
    assert replaying.subject.held_bytes() == 7


@pytest.mark.parametrize(("rows", "draws", "records"), [(2, 1, False), (4, 1, True), (2, 2, True)])
def test_nothing_is_recorded_that_is_never_replayed(
    replaying: Replaying, rows: int, draws: int, records: bool
) -> None:
    """With one backward a rank and step peers sum in every one, and a recording would only hold memory."""
    training = dataclasses.replace(replaying.settings.training, rows_per_step=rows, draws_per_row=draws)
    settings = dataclasses.replace(replaying.settings, world_size=2, training=training)
    trainer = Trainer(settings, attention=replaying.flex, operations=PLAIN, recorder=Again())
    assert trainer.records is records


def test_a_refusal_ends_replays(replaying: Replaying) -> None:
    """The compiled attention refuses a thread: no later row is replayed, though nothing is called then."""
    (row,) = rows_of(replaying, count=1)
    attend = replaying.flex.over(row.blocks.rule)

    def call() -> None:
        with pytest.raises(WorkerError, match="want the thread that made it"):
            attend(*(torch.zeros(1, 1, 1, 1, dtype=torch.bfloat16) for _ in range(3)))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    replayed = replaying.recorder.replayed
    with pytest.raises(WorkerError, match="refused before") as refused:
        replaying.trainer.micro_step(row, row=1)
    assert refused.value.kind is Kind.FATAL
    assert replaying.recorder.replayed == replayed


def test_another_thread_replays_nothing(replaying: Replaying) -> None:
    """As it may call nothing compiled."""
    (row,), told = rows_of(replaying, count=1), []

    def call() -> None:
        with pytest.raises(WorkerError, match="want the thread that") as refused:
            replaying.trainer.micro_step(row, row=1)
        told.append(refused.value.kind)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert told == [Kind.FATAL]


@pytest.mark.parametrize("odd", ["dtype", "anchors", "bytes"])
def test_a_row_of_another_layout_is_refused(replaying: Replaying, odd: str) -> None:
    """It would be read as what it is not."""
    (row,) = rows_of(replaying, count=1)
    rule = row.blocks.rule
    changed = {
        "dtype": lambda: dataclasses.replace(row, hidden_SC=row.hidden_SC.double()),
        "anchors": lambda: dataclasses.replace(
            row,
            blocks=dataclasses.replace(
                row.blocks, rule=dataclasses.replace(rule, anchors_BN=rule.anchors_BN[:, :-1])
            ),
        ),
        "bytes": lambda: dataclasses.replace(row, packed=None),
    }[odd]()
    with pytest.raises(WorkerError, match="want a row laid out as the recorded one") as refused:
        replaying.trainer.micro_step(changed, row=1)
    assert refused.value.kind is Kind.FATAL


def test_poison_and_sums_beside_the_backward_are_not_replayed(
    replaying: Replaying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording has neither; where a drafter is alone its last row has no such sum."""
    alone = Communicator("", number=1, world=1, rank=0)
    first, second, third, fourth = rows_of(replaying, count=4)
    before = replaying.recorder.replayed
    replaying.trainer.micro_step(first, row=1, poison=True)
    assert not replaying.trainer.reduce(alone).finite
    replaying.trainer.drop()
    assert replaying.recorder.replayed == before
    replaying.trainer.micro_step(second, row=2, communicator=alone)
    replaying.trainer.drop()
    assert replaying.recorder.replayed == before + 1
    monkeypatch.setattr(replaying.trainer, "_alone", False)
    replaying.trainer.micro_step(third, row=3)
    replaying.trainer.micro_step(fourth, row=4, communicator=alone)
    assert replaying.recorder.replayed == before + 2
    assert replaying.trainer.reduce(alone).finite


def test_places_of_the_past_are_zeroed_before_a_later_row(replaying: Replaying) -> None:
    """Where some of a step's gradients came one by one and others never did."""
    optimiser = replaying.trainer.optimiser
    assert optimiser.begins()
    (row,) = rows_of(replaying, count=1)
    replaying.trainer.micro_step(row, row=1)
    alone = Communicator("", number=1, world=1, rank=0)
    once = optimiser.gradient_P.clone()
    replaying.trainer.drop()
    for place in optimiser._places.values():  # noqa: SLF001
        place.of(optimiser._gradient_P).fill_(7.0)  # noqa: SLF001
    name = next(iter(optimiser._stale))  # noqa: SLF001
    optimiser._places[name].of(optimiser._gradient_P).zero_()  # noqa: SLF001
    optimiser._stale.discard(name)  # noqa: SLF001
    assert not optimiser.begins()
    replaying.trainer.micro_step(row, row=1)
    assert torch.equal(optimiser.gradient_P, once)
    assert replaying.trainer.reduce(alone).finite


def test_recording_wants_no_open_step(replaying: Replaying) -> None:
    """What was added so far would be lost in it."""
    first, second = rows_of(replaying, count=2)
    replaying.trainer.micro_step(first, row=1)
    with pytest.raises(AssertionError, match="no open step"):
        replaying.trainer.record(second)


def test_a_device_without_room_for_a_recording(replaying: Replaying, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warm-up fails, and says what takes less."""
    (row,) = rows_of(replaying, count=1)

    def record(_: object) -> object:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(replaying.recorder, "record", record)
    with pytest.raises(WorkerError, match=r"record micro-step of \d+ tokens: CUDA out of memory") as refused:
        replaying.trainer.record(row)
    assert refused.value.kind is Kind.EXHAUSTED
    assert "drafter.flex.replay: false" in refused.value.hint
