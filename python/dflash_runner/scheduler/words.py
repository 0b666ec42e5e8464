"""Between what travels and what a plugin sees; what a plugin says is checked to be sayable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dflash_runner.scheduler.errors import Error, Kind
from dflash_runner.scheduler.plugin import Capability
from dflash_runner.scheduler.pool import Pool, pack
from dflash_runner.scheduler.requests import (
    ArrangeRequest,
    AssignRequest,
    Deadline,
    Decision,
    Device,
    Event,
    FailureRequest,
    Link,
    Need,
    PlaceRequest,
    Source,
    Verdict,
    Worker,
)
from dflash_runner.scheduler.schema import Field, Type
from dflash_runner.scheduler.v1 import scheduler_pb2 as pb

CAPABILITIES = {
    Capability.PLACE: pb.CAPABILITY_PLACE,
    Capability.ARRANGE: pb.CAPABILITY_ARRANGE,
    Capability.ASSIGN: pb.CAPABILITY_ASSIGN,
    Capability.ON_FAILURE: pb.CAPABILITY_ON_FAILURE,
    Capability.OBSERVE: pb.CAPABILITY_OBSERVE,
}
_TYPES = {
    Type.TEXT: pb.TYPE_TEXT,
    Type.INT: pb.TYPE_INT,
    Type.NUMBER: pb.TYPE_NUMBER,
    Type.BOOL: pb.TYPE_BOOL,
    Type.TEXTS: pb.TYPE_TEXTS,
}
DECISIONS = {
    Decision.RESTART: pb.DECISION_RESTART,
    Decision.REPLACE: pb.DECISION_REPLACE,
    Decision.STOP: pb.DECISION_STOP,
}


def arrange_request(message: Any, deadline: Deadline) -> ArrangeRequest:
    """A question about the order.

    Raises:
        Error: INVALID, the pool's lists are of unequal lengths, or a source is none.
    """
    sources = tuple(Source(name=s.name, loss=s.loss if s.HasField("loss") else None) for s in message.sources)
    if not message.HasField("columns"):
        pool = _pool_of_lists(message.pool)
    elif not message.HasField("pool"):
        pool = _pool_of_columns(message.columns)
    else:
        raise Error(Kind.INVALID, "arrange: want a pool or columns, got both")
    if (got := pool.stranger(len(sources))) is not None:
        raise Error(
            Kind.INVALID, f"arrange: source of the pool: want one of {len(sources)} sources, got {got}"
        )
    return ArrangeRequest(
        epoch=message.epoch,
        count=message.count,
        left=message.left,
        total=message.total,
        pool=pool,
        sources=sources,
        deadline=deadline,
    )


def _pool_of_lists(p: Any) -> Pool:
    """A pool of the message's own lists: a copy of a large one takes longer than all else."""
    sizes = [len(column) for column in (p.sample, p.tokens, p.supervised, p.anchors, p.source)]
    if len(set(sizes)) > 1:
        raise Error(
            Kind.INVALID, f"arrange: want {sizes[0]} entries in every list of the pool, got {sizes[1:]}"
        )
    return Pool(
        sample_P=p.sample,
        tokens_P=p.tokens,
        supervised_P=p.supervised,
        anchors_P=p.anchors,
        source_P=p.source,
    )


def _pool_of_columns(c: Any) -> Pool:
    """A pool of what a stream brings."""
    columns = {
        "sample": c.sample,
        "tokens": c.tokens,
        "supervised": c.supervised,
        "anchors": c.anchors,
        "source": c.source,
    }
    try:
        return Pool.unpacked(c.places, columns)
    except ValueError as e:
        raise Error(Kind.INVALID, f"arrange: columns: {e}") from e


def arrange_reply(samples: Any, *, packed: bool = False) -> Any:
    """An order as it travels.

    Args:
        samples: what the plugin gave.
        packed: whether the question had columns.

    Raises:
        Error: INTERNAL, it is no list of samples' numbers.
    """
    if isinstance(samples, str | bytes) or not isinstance(samples, Iterable):
        raise _wrong("arrange", "a list of samples", samples)
    samples = list(samples)
    try:
        return pb.ArrangeReply(packed=pack(samples)) if packed else pb.ArrangeReply(samples=samples)
    except (TypeError, ValueError, OverflowError):
        for place, sample in enumerate(samples):
            if not isinstance(sample, int) or not 0 <= sample < 1 << 32:
                raise _wrong(f"arrange: place {place}", "a sample's number", sample) from None
        raise


def assign_request(message: Any, deadline: Deadline) -> AssignRequest:
    """A question about a row's target."""
    free = tuple(worker_of(w) for w in message.free)
    return AssignRequest(
        row=message.row, bucket=message.bucket, tokens=message.tokens, free=free, deadline=deadline
    )


def assign_reply(target: Any) -> Any:
    """A target as it travels.

    Raises:
        Error: INTERNAL, it is no worker.
    """
    return pb.AssignReply(target=_worker("assign", target))


def place_request(message: Any, deadline: Deadline) -> PlaceRequest:
    """A question about devices."""
    needs = (
        Need(
            worker=worker_of(n.worker),
            memory_bytes=n.memory_bytes,
            row_ms=n.row_ms if n.HasField("row_ms") else None,
        )
        for n in message.needs
    )
    return PlaceRequest(
        devices=devices_of(message.devices), needs=tuple(needs), colocate=message.colocate, deadline=deadline
    )


def place_reply(placements: Any) -> Any:
    """A placement as it travels.

    Raises:
        Error: INTERNAL, it is no mapping of workers to devices' ids.
    """
    if not isinstance(placements, Mapping):
        raise _wrong("place", "a mapping of workers to devices", placements)
    out = pb.PlaceReply()
    for worker, device in placements.items():
        if not isinstance(device, str):
            raise _wrong(f"place {worker}", "the id of a device", device)
        out.placements.append(pb.Placement(worker=_worker("place", worker), device=device))
    return out


def failure_request(message: Any, deadline: Deadline) -> FailureRequest:
    """A worker's death."""
    return FailureRequest(
        worker=worker_of(message.worker),
        device=message.device,
        cause=message.cause,
        message=message.message,
        deaths=message.deaths,
        budget=message.budget,
        devices=devices_of(message.devices),
        deadline=deadline,
    )


def failure_reply(verdict: Any) -> Any:
    """A verdict as it travels.

    Raises:
        Error: INTERNAL, it is no verdict.
    """
    if not isinstance(verdict, Verdict) or not isinstance(verdict.decision, Decision):
        raise _wrong("on_failure", "a Verdict with a Decision", verdict)
    for name, text in (("device", verdict.device), ("reason", verdict.reason)):
        if not isinstance(text, str):
            raise _wrong(f"on_failure: {name}", "a text", text)
    return pb.OnFailureReply(
        decision=DECISIONS[verdict.decision], device=verdict.device, reason=verdict.reason
    )


def event_of(message: Any) -> Event:
    """What happened."""
    return Event(
        number=message.number,
        at_unix_ms=message.at_unix_ms,
        level=message.level,
        name=message.name,
        message=message.message,
        worker=worker_of(message.worker) if message.HasField("worker") else None,
        step=message.step,
        row=message.row,
    )


def field_message(field: Any) -> Any:
    """A key of the schema as it travels.

    Raises:
        Error: INTERNAL, it is no Field.
    """
    if not isinstance(field, Field):
        raise _wrong("schema", "Fields", field)
    out = pb.Field(
        key=field.key, type=_TYPES[field.type], doc=field.doc, required=field.required, one_of=field.one_of
    )
    for bound in ("min", "max"):
        if getattr(field, bound) is not None:
            setattr(out, bound, getattr(field, bound))
    if not field.required:
        match field.type:
            case Type.TEXT:
                out.default.text = field.value
            case Type.INT:
                out.default.int = field.value
            case Type.NUMBER:
                out.default.number = field.value
            case Type.BOOL:
                out.default.flag = field.value
            case Type.TEXTS:
                out.default.texts.texts.extend(field.value)
                out.default.texts.SetInParent()
    return out


def worker_of(message: Any) -> Worker:
    """One process of the run."""
    return Worker(role=message.role, rank=message.rank)


def devices_of(messages: Any) -> tuple[Device, ...]:
    """The devices of a question."""
    return tuple(
        Device(
            id=d.id,
            name=d.name,
            memory_bytes=d.memory_bytes,
            free_bytes=d.free_bytes,
            health=d.health,
            node=d.node,
            numa=d.numa,
            links=tuple(Link(id=link.id, gb_per_s=link.gb_per_s, peer=link.peer) for link in d.links),
        )
        for d in messages
    )


def _worker(what: str, worker: Any) -> Any:
    """A worker as it travels."""
    if not isinstance(worker, Worker):
        raise _wrong(what, "a Worker", worker)
    try:
        return pb.Worker(role=worker.role, rank=worker.rank)
    except (TypeError, ValueError) as e:
        raise Error(Kind.INTERNAL, f"{what}: want a role and a rank, got {worker!r}") from e


def _wrong(what: str, want: str, got: Any) -> Error:
    return Error(Kind.INTERNAL, f"{what}: want {want}, got {type(got).__name__} {got!r:.80}")
