"""Every question of the contract, put to a plugin in this process as the host puts it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from dflash_runner.scheduler import judging, vitals, words
from dflash_runner.scheduler.plugin import API_VERSION, Capability, Scheduler, capabilities
from dflash_runner.scheduler.pool import numbers, pack
from dflash_runner.scheduler.requests import Deadline, Verdict
from dflash_runner.scheduler.service import Service
from dflash_runner.scheduler.v1 import scheduler_pb2 as pb

_CALLS = 300  # between two looks at what a plugin leaves behind
_CALLS_S = 10.0  # for them; a slow plugin is asked less
_LEAST_CALLS = 8  # fewer tell nothing

_Sample = tuple[int, int, int, int, int]


class Found(Exception):
    """What is wrong, in the host's words."""


class Skip(Exception):
    """Why a question says nothing; it is no failure."""


class Kit:
    """One proof in progress: each method asks, and says what was good or raises what was not."""

    def __init__(self, scheduler: Scheduler, *, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self.can = capabilities(scheduler)
        self._scheduler = scheduler
        self._service = Service(scheduler)

    def describe(self) -> str:
        """Name and version, the same always."""
        said = [
            self._service.info(pb.InfoRequest(api_versions=[API_VERSION]), self._soon()) for _ in range(2)
        ]
        if said[0] != said[1]:
            raise Found(f"info: want the same always, got {said[0]} and {said[1]}")
        if not judging.NAME.fullmatch(said[0].name):
            raise Found(f"info: name: want at most 64 of a-z, 0-9 and '-', got {said[0].name!r:.80}")
        if len(said[0].version.encode()) > 80:
            raise Found(f"info: version: want at most 80 bytes, got {said[0].version!r:.100}")
        return f"{said[0].name} {said[0].version}, can {[c.value for c in self.can]}"

    def schema(self) -> str:
        """A schema that makes sense, with a meaning for every key."""
        fields = self._scheduler.schema()
        self._service.schema(pb.ConfigSchemaRequest(), self._soon())
        if wrong := judging.schema(fields):
            raise Found(f"schema: {wrong}")
        for field in fields:
            if not field.doc:
                raise Found(f"schema: key {field.key}: want a meaning, got none")
        return f"{len(fields)} keys"

    def configure(self, config: Mapping[str, Any], seed: int) -> str:
        """The configuration as the host hands it over."""
        whole = judging.filled(self._scheduler.schema(), config)
        raw = msgspec.msgpack.encode(dict(sorted(whole.items())))
        message = pb.ConfigureRequest(api_version=API_VERSION, config=raw, seed=seed)
        self._service.configure(message, self._soon())
        return ""

    def epochs(self) -> str:
        """Two epochs to their ends, a horizon at a time."""
        questions = 0
        for epoch in (1, 2):
            left: Sequence[_Sample] = _pool(333)
            while left:
                given = self._arrange(epoch, 40, 333, left, f"epoch {epoch} with {len(left)} left: ")
                gone = set(given)
                left = [sample for sample in left if sample[0] not in gone]
                questions += 1
        return f"{questions} questions"

    def large(self) -> str:
        """A pool of many."""
        began = time.perf_counter()
        self._arrange(1, 2000, 100_000, _pool(100_000), "")
        return f"2000 of 100000 samples in {1000 * (time.perf_counter() - began):.1f} ms"

    def draws(self) -> str:
        """A sample may stand in the pool several times."""
        self._arrange(1, 10, 10, _pool(5) * 2, "")
        return ""

    def assign(self) -> str:
        """Several and changing targets."""
        for row in range(1, 201):
            free = [pb.Worker(role="target", rank=rank + row % 3) for rank in range(2 + row % 7)]
            self._assign(pb.AssignRequest(row=row, bucket=3072, tokens=100 + row, free=free))
        return "200 questions"

    def place(self) -> str:
        """A split over eight devices, and pairs on as few as there are."""
        needs = []
        for rank in range(4):
            needs.append(pb.Need(worker=pb.Worker(role="target", rank=rank), memory_bytes=20 << 30))
            needs.append(pb.Need(worker=pb.Worker(role="drafter", rank=rank), memory_bytes=30 << 30))
        for count, colocate in ((8, False), (4, True)):
            message = pb.PlaceRequest(devices=_devices(count), needs=needs, colocate=colocate)
            answer = self._in_time(self._service.place, message)
            given = {words.worker_of(p.worker): p.device for p in answer.placements}
            wrong = judging.place(words.place_request(message, self._soon()), given)
            if wrong:
                raise Found(f"8 workers on {count} devices: {wrong}")
        return ""

    def on_failure(self) -> str:
        """A death, with another device free."""
        message = pb.OnFailureRequest(
            worker=pb.Worker(role="target"),
            device="GPU-0",
            cause="cuda",
            message="an error of the device",
            deaths=1,
            budget=3,
            devices=_devices(2),
        )
        answer = self._in_time(self._service.on_failure, message)
        decision = next(d for d, number in words.DECISIONS.items() if number == answer.decision)
        verdict = Verdict(decision=decision, device=answer.device, reason=answer.reason)
        if wrong := judging.on_failure(words.failure_request(message, self._soon()), verdict):
            raise Found(wrong)
        return decision.value

    def observe(self) -> str:
        """Many events."""
        for n in range(2000):
            event = pb.Event(number=n + 1, at_unix_ms=1_800_000_000_000, level="info", name="step decided")
            self._service.observe(event)
        return "2000 events"

    def together(self) -> str:
        """Eight questions at a time."""
        with ThreadPoolExecutor(8) as threads:
            asks = self._asks()[:1]
            list(threads.map(lambda row: [ask(row) for ask in asks], range(1, 33)))
        return ""

    def leaves(self) -> str:
        """Nothing that grows with every question.

        It looks twice: what a plugin makes once and keeps does not grow again.
        """
        self._many()  # what the first questions make is no leak
        before = vitals.now()
        wrong: list[str] = []
        for _ in range(2):
            calls = self._many()
            after = vitals.settled(before, calls=calls)
            more = vitals.grown(before, after, calls=calls)
            if not more:
                return str(after) + vitals.sight(calls)
            wrong.append(more)
            before = after
        raise Found(f"want as much after many calls as before, got {wrong[0]}")

    def _many(self) -> int:
        """Ask several hundred questions, and give how many there was the time for.

        Raises:
            Skip: so few tell nothing.
        """
        asks, until = self._asks(), time.monotonic() + _CALLS_S
        for row in range(1, _CALLS + 1):
            asks[row % len(asks)](row)
            if time.monotonic() > until:
                break
        if row < _LEAST_CALLS:
            took = f"{row} calls took {_CALLS_S:g} s"
            raise Skip(f"it is too slow to tell: {took}, want {_LEAST_CALLS} or more")
        return row

    def _asks(self) -> list[Callable[[int], Any]]:
        """One question of each kind that is asked often, of those that the plugin answers."""
        free = [pb.Worker(role="target", rank=rank) for rank in range(2)]
        asks: list[Callable[[int], Any]] = []
        if Capability.ASSIGN in self.can:
            asks.append(lambda row: self._assign(pb.AssignRequest(row=row, bucket=64, tokens=32, free=free)))
        if Capability.ARRANGE in self.can:
            asks.append(lambda _row: self._arrange(1, 8, 64, _pool(64), ""))
        return asks

    def _arrange(self, epoch: int, count: int, total: int, left: Sequence[_Sample], where: str) -> list[int]:
        sample, tokens, supervised, anchors, source = zip(*left, strict=True)
        message = pb.ArrangeRequest(
            epoch=epoch,
            count=min(count, len(left)),
            left=len(left),
            total=total,
            columns=pb.Columns(
                places=len(left),
                sample=pack(sample),
                tokens=pack(tokens),
                supervised=pack(supervised),
                anchors=pack(anchors),
                source=pack(source),
            ),
            sources=[pb.Source(name="a", loss=2.5), pb.Source(name="b")],
        )
        packed = self._in_time(self._service.arrange, message).packed
        answer = numbers(len(packed) // 4, packed)
        if wrong := judging.arrange(words.arrange_request(message, self._soon()), answer):
            raise Found(where + wrong)
        return answer

    def _assign(self, message: Any) -> None:
        answer = self._in_time(self._service.assign, message)
        target = words.worker_of(answer.target)
        if wrong := judging.assign(words.assign_request(message, self._soon()), target):
            raise Found(wrong)

    def _soon(self) -> Deadline:
        return Deadline.after(self._deadline_s)

    def _in_time(self, ask: Callable[[Any, Deadline], Any], message: Any) -> Any:
        """An answer; one after its deadline is found."""
        deadline = self._soon()
        answer = ask(message, deadline)
        if deadline.over:
            raise Found(f"want an answer within {self._deadline_s:g} s, got one later")
        return answer


@functools.cache
def _pool(count: int) -> tuple[_Sample, ...]:
    """Samples of several lengths and two sources, the same always, as rows of a pool's columns."""
    lengths = (16 + i * 7919 % 480 for i in range(count))
    return tuple((3 * i, n, n // 2, n // 4, i % 2) for i, n in enumerate(lengths))


def _devices(count: int) -> Iterator[Any]:
    for i in range(count):
        yield pb.Device(
            id=f"GPU-{i}",
            name="test",
            memory_bytes=80 << 30,
            free_bytes=78 << 30,
            health="healthy",
            numa=i // 4,
        )
