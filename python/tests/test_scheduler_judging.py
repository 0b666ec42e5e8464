"""The kit judges as the host does, word for word: both read proto/golden/judgements.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dflash_runner.scheduler import (
    ArrangeRequest,
    AssignRequest,
    Candidate,
    Deadline,
    Decision,
    Device,
    Error,
    FailureRequest,
    Field,
    Need,
    PlaceRequest,
    Pool,
    Type,
    Verdict,
    Worker,
    judging,
)

TABLE = json.loads(
    (Path(__file__).resolve().parents[2] / "proto" / "golden" / "judgements.json").read_text("utf-8")
)
SOON = Deadline.after(60)


def cases(name: str) -> Any:
    """Those of a part that a Python plugin can say."""
    return pytest.mark.parametrize("case", [c for c in TABLE[name] if "go" not in c])


def worker(name: str) -> Worker:
    role, rank = name.split("/")
    return Worker(role=role, rank=int(rank))


def device(name: str, free_bytes: int, health: str) -> Device:
    return Device(
        id=name,
        name="",
        memory_bytes=free_bytes,
        free_bytes=free_bytes,
        health=health,
        node=0,
        numa=0,
        links=(),
    )


def fields(case: dict[str, Any]) -> list[Field]:
    return [
        Field(**{**f, "type": Type(f["type"]), "one_of": tuple(f.get("one_of", ()))}) for f in case["fields"]
    ]


@cases("arrange")
def test_arrange(case):
    pool = Pool.of([Candidate(sample=s, tokens=1, supervised=1, anchors=1, source=0) for s in case["pool"]])
    request = ArrangeRequest(
        epoch=1, count=case["count"], left=9, total=9, pool=pool, sources=(), deadline=SOON
    )
    assert (judging.arrange(request, case["answer"]) or "") == case["wrong"]


@cases("assign")
def test_assign(case):
    free = tuple(worker(name) for name in case["free"])
    request = AssignRequest(row=case["row"], bucket=1, tokens=1, free=free, deadline=SOON)
    assert (judging.assign(request, worker(case["answer"])) or "") == case["wrong"]


@cases("place")
def test_place(case):
    request = PlaceRequest(
        devices=tuple(device(name, *d) for name, d in case["devices"].items()),
        needs=tuple(Need(worker=worker(w), memory_bytes=n, row_ms=None) for w, n in case["needs"].items()),
        colocate=case["colocate"],
        deadline=SOON,
    )
    answer = {worker(name): at for name, at in case["answer"]}
    assert (judging.place(request, answer) or "") == case["wrong"]


@cases("on_failure")
def test_on_failure(case):
    request = FailureRequest(
        worker=Worker(role="target", rank=0),
        device="a",
        cause="cuda",
        message="",
        deaths=1,
        budget=3,
        devices=tuple(device(name, 1, health) for name, health in case["devices"].items()),
        deadline=SOON,
    )
    verdict = Verdict(
        decision=Decision(case["decision"]),
        device=case.get("to", ""),
        reason=case.get("reason", "") * case.get("times", 1),
    )
    assert (judging.on_failure(request, verdict) or "") == case["wrong"]


@cases("name")
def test_name(case):
    assert bool(judging.NAME.fullmatch(case["name"])) == case["good"]


@cases("schema")
def test_schema(case):
    assert (judging.schema(fields(case)) or "") == case["wrong"]


@cases("config")
def test_config(case):
    try:
        judging.filled(fields(case), case["values"])
        said = ""
    except Error as error:
        said = error.message
    assert said == case["wrong"]
