"""What a plugin sees, what it may say, and that the kit finds and names what is wrong."""

from __future__ import annotations

import copy
import json
import pickle
import re
import threading
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from dflash_runner import errors as workers
from dflash_runner import scheduler
from dflash_runner.scheduler import (
    ArrangeRequest,
    Candidate,
    Capability,
    Config,
    Deadline,
    Decision,
    Error,
    Field,
    Kind,
    Pool,
    Scheduler,
    Type,
    Verdict,
    Worker,
    judging,
    testing,
    words,
)
from dflash_runner.scheduler.errors import told
from dflash_runner.scheduler.pool import pack
from dflash_runner.scheduler.service import Service
from dflash_runner.scheduler.v1 import scheduler_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

TABLE = json.loads(
    (Path(__file__).resolve().parents[2] / "proto" / "golden" / "columns.json").read_text("utf-8")
)
COLUMNS = ("sample", "tokens", "supervised", "anchors", "source")
PATIENT_S = 120.0  # of tests: the machine may be busy


class Good(Scheduler):
    """Does everything."""

    name, version = "good", "1.0.0"

    def schema(self):
        return (Field(key="depth", type=Type.INT, default=4, min=1, max=9, doc="how deep"),)

    def configure(self, config):
        self.depth = config.values["depth"]

    def arrange(self, request):
        return scheduler.first(request)[::-1]

    def assign(self, request):
        return request.free[-1]

    def place(self, request):
        apart = len(request.devices) >= len(request.needs)
        places = [i if apart else n.worker.rank for i, n in enumerate(request.needs)]
        return {n.worker: request.devices[i].id for n, i in zip(request.needs, places, strict=True)}

    def on_failure(self, request):  # noqa: ARG002
        return Verdict(decision=Decision.RESTART)

    def observe(self, event):
        self.seen = event.number


class Least(Scheduler):
    name, version = "least", "1"


def found(make, config=None) -> dict[str, str]:
    """What the kit found, by name."""
    results = testing.check(make, config, deadline_s=PATIENT_S)
    return {r.name: r.detail for r in results if r.status == testing.FAILED}


def test_an_error_wants_a_kind():
    """A word in its place is told at once, with the message that it came with."""
    with pytest.raises(TypeError, match=r"want one of Kind\..*, got 'config' with the message 'no mode'"):
        scheduler.Error("config", "no mode")


def test_a_class_offers_what_it_overrides():
    assert scheduler.capabilities(Least()) == ()
    assert scheduler.capabilities(Good()) == tuple(Capability)

    class Second(Least):
        def assign(self, request):
            return request.free[0]

    assert scheduler.capabilities(Second()) == (Capability.ASSIGN,)
    with pytest.raises(Error, match="place: this plugin does not do that"):
        Second().place(None)


def test_the_kit_passes_a_good_plugin():
    testing.prove(Good, {"depth": 7}, deadline_s=PATIENT_S)
    with pytest.raises(AssertionError, match="configure: Error: depth: want at most 9, got 12"):
        testing.prove(Good, {"depth": 12}, deadline_s=PATIENT_S)
    results = {r.name: r.status for r in testing.check(Least, deadline_s=PATIENT_S)}
    assert results.pop("place") == testing.SKIPPED
    assert testing.FAILED not in results.values()


BAD_ORDERS = {
    "stands there again": lambda given: [given[0]] * len(given),
    "want 40 samples, got 39": lambda given: given[1:],
    "is not in the pool": lambda given: [4_000_000, *given[1:]],
    "want a list of samples, got NoneType": lambda _: None,
    "want a list of samples, got str": lambda _: "12",
    "place 1: want a sample's number, got str": lambda given: [given[0], "x", *given[2:]],
    "place 0: want a sample's number, got int -1": lambda given: [-1, *given[1:]],
    "place 0: want a sample's number, got float": lambda given: [0.5, *given[1:]],
    "KeyError: 'loss'": lambda _: {}["loss"],
    "want an answer within 1e-09 s": lambda given: given,
}


@pytest.mark.parametrize("says", BAD_ORDERS)
def test_the_kit_names_a_bad_order(says):
    class Bad(Good):
        def arrange(self, request):
            return BAD_ORDERS[says](scheduler.first(request))

    limit_s = 1e-9 if "within" in says else PATIENT_S
    results = testing.check(Bad, deadline_s=limit_s)
    details = {r.name: r.detail for r in results if r.status == testing.FAILED}
    assert says in details["arrange whole epochs"]


def test_the_kit_finds_what_only_some_questions_show():
    class Once(Good):  # takes a sample to stand in a pool once
        def arrange(self, request):
            return list(dict.fromkeys(scheduler.first(request)))

    assert list(found(Once)) == ["arrange repeated draws"]

    class Ends(Good):  # forgets the end of an epoch
        def arrange(self, request):
            given = scheduler.first(request)
            return given if request.left > 40 else given[1:]

    assert "with 13 left: want 13 samples, got 12" in found(Ends)["arrange whole epochs"]

    class Stateful(Good):  # is asked by several threads
        lock = threading.Lock()

        def assign(self, request):
            if not self.lock.acquire(blocking=False):
                raise RuntimeError("two at a time")
            try:
                threading.Event().wait(0.01)
                return request.free[0]
            finally:
                self.lock.release()

    assert found(Stateful) == {"answers several at a time": "RuntimeError: two at a time"}


@pytest.mark.parametrize(
    ("method", "answer", "name", "says"),
    [
        ("assign", Worker(role="target", rank=99), "assign", "row 1: want one of [target/1 "),
        ("assign", "target/0", "assign", "assign: want a Worker, got str"),
        ("assign", Worker(role="target", rank=-1), "assign", "assign: want a role and a rank"),
        ("place", {}, "place", "8 workers on 8 devices: want 8 placements, got 0"),
        ("on_failure", Verdict(decision=Decision.STOP, reason="a\nb"), "on failure", "a reason of one line"),
        ("place", [], "place", "place: want a mapping of workers to devices, got list"),
        ("place", {"a": "b"}, "place", "place: want a Worker, got str"),
        ("place", {Worker(role="target", rank=0): 3}, "place", "want the id of a device, got int"),
        ("on_failure", Verdict(decision=Decision.REPLACE, device="GPU-0"), "on failure", "another device"),
        ("on_failure", "restart", "on failure", "on_failure: want a Verdict with a Decision, got str"),
        ("info", scheduler.Info(name="Not A Name", version="1"), "describe", "got 'Not A Name'"),
        ("info", None, "describe", "info: want an Info with two texts, got None"),
        ("schema", [Field(key="a", type=Type.INT)], "schema", "key a: want a meaning, got none"),
        ("schema", [Field(key="A", type=Type.INT)], "schema", "key: want a-z, 0-9 and '_', got \"A\""),
        ("schema", [Field(key="a", type=Type.INT, min=1, doc="x")], "schema", "want at least 1, got 0"),
        ("schema", ["a"], "schema", "want Fields, got str"),
    ],
)  # fmt: skip
def test_the_kit_names_other_bad_answers(method, answer, name, says):
    bad = type("Bad", (Good,), {method: lambda *_: answer})
    assert says in found(bad)[name]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"dept": 4}, "dept: unknown key"),
        ({"depth": "x"}, "depth: want a whole number, got x"),
        ({"depth": True}, "depth: want a whole number, got true"),
        ({"depth": 12}, "depth: want at most 9, got 12"),
        ({"dept": 4, "depth": 12}, "dept: unknown key; depth: want at most 9, got 12"),
    ],
)
def test_the_kit_hands_over_what_the_host_would(config, says):
    assert says in found(Good, config)["configure"]


def ask(count=3, size=5, loss=None) -> ArrangeRequest:
    pool = [Candidate(sample=10 + i, tokens=8, supervised=4, anchors=3, source=0) for i in range(size)]
    return ArrangeRequest(
        epoch=1,
        count=count,
        left=size,
        total=size,
        pool=Pool.of(pool),
        sources=(scheduler.Source(name="x", loss=loss),),
        deadline=Deadline.after(60),
    )


def test_a_pool_is_a_sequence_of_candidates():
    request = ask()
    assert len(request.pool) == 5
    assert [c.sample for c in request.pool] == [10, 11, 12, 13, 14] == list(request.pool.sample_P)
    assert request.pool[-1] == list(request.pool)[-1]
    assert [c.sample for c in request.pool[1:3]] == [11, 12]
    with pytest.raises(IndexError):
        request.pool[5]
    assert scheduler.first(request) == [10, 11, 12]
    assert scheduler.first(ask(count=9)) == [10, 11, 12, 13, 14]


def test_a_question_is_whole():
    """Absent is not zero, and lists of unequal lengths are refused."""
    message = pb.ArrangeRequest(
        epoch=1, count=1, left=2, total=2,
        sources=[pb.Source(name="a", loss=0.0), pb.Source(name="b")],
        pool=pb.Pool(sample=[4, 5], tokens=[8, 9], supervised=[1, 2], anchors=[1, 1], source=[0, 1]),
    )  # fmt: skip
    request = words.arrange_request(message, Deadline.after(60))
    assert [s.loss for s in request.sources] == [0.0, None]
    assert request.pool[1] == Candidate(sample=5, tokens=9, supervised=2, anchors=1, source=1)
    message.pool.source[1] = 2
    with pytest.raises(Error, match="want one of 2 sources, got 2"):
        words.arrange_request(message, Deadline.after(60))
    message.pool.tokens.append(1)
    with pytest.raises(Error, match="want 2 entries in every list"):
        words.arrange_request(message, Deadline.after(60))


def columns_of(pool: list[list[int]]) -> pb.Columns:
    return pb.Columns(
        places=len(pool),
        **{name: pack([row[i] for row in pool]) for i, name in enumerate(COLUMNS)},
    )


@pytest.mark.parametrize("case", TABLE["columns"])
def test_columns_are_those_of_the_table(case):
    """A pool of columns is equal to one of candidates, whatever was looked at before."""
    pool = Pool.of([Candidate(**dict(zip(COLUMNS, row, strict=True))) for row in case["pool"]])
    message = pb.Columns.FromString(bytes.fromhex(case["message"]))
    sources = [pb.Source()] * 257
    for columns in (message, columns_of(case["pool"])):
        got = words.arrange_request(pb.ArrangeRequest(columns=columns, sources=sources), Deadline.after(60))
        assert [got.pool.first(n) for n in range(5)] == [pool.first(n) for n in range(5)]
        fresh = copy.copy(got.pool)
        assert list(got.pool) == list(pool)
        assert got.pool == pool == fresh == pickle.loads(pickle.dumps(got.pool))
        assert (repr(fresh), len(fresh), fresh[:2]) == (repr(pool), len(pool), pool[:2])
        assert got.pool.tokens_P == [row[1] for row in case["pool"]]  # as a list is
        assert not hasattr(got.pool, "losses_P")


@given(st.integers(0, 4), st.lists(st.binary(max_size=20), min_size=5, max_size=5), st.integers(0, 3))
def test_columns_are_whole_or_refused(places, raw, sources):
    columns = pb.Columns(places=places, **dict(zip(COLUMNS, raw, strict=True)))
    message = pb.ArrangeRequest(count=9, columns=columns, sources=[pb.Source()] * sources)
    try:
        request = words.arrange_request(message, Deadline.after(60))
    except Error as e:
        assert e.kind is Kind.INVALID
    else:
        assert len(request.pool) == places == len(list(request.pool))
        assert all(c.source < sources for c in request.pool)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tokens": b"abc"}, "columns: tokens: want 1, 2 or 4 bytes for each of 2 places, got 3 bytes"),
        ({"places": 2**32 - 1}, "columns: sample: want 1, 2 or 4 bytes for each of 4294967295 places, got 8"),
        ({"source": bytes([0, 2])}, "want one of 2 sources, got 2"),
        ({"source": bytes([0, 0, 0, 1])}, "want one of 2 sources, got 256"),
    ],
)
def test_columns_that_do_not_fit(change, says):
    message = pb.ArrangeRequest(
        columns=columns_of([[7, 1, 1, 1, 0], [8, 1, 1, 1, 1]]), sources=[pb.Source()] * 2
    )
    assert words.arrange_request(message, Deadline.after(60)).pool.sample_P == [7, 8]
    message.columns.MergeFrom(pb.Columns(**change))
    with pytest.raises(Error, match=says) as refused:
        words.arrange_request(message, Deadline.after(60))
    assert refused.value.kind is Kind.INVALID
    message.pool.SetInParent()
    with pytest.raises(Error, match="want a pool or columns, got both"):
        words.arrange_request(message, Deadline.after(60))


@pytest.mark.parametrize("bad", [-1, 1 << 32, 1.5, "7", None])
@pytest.mark.parametrize("packed", [False, True])
def test_an_order_travels_or_its_place_is_named(packed, bad):
    reply = words.arrange_reply((7, 1 << 31), packed=packed)
    assert reply == (
        pb.ArrangeReply(packed=pack([7, 1 << 31])) if packed else pb.ArrangeReply(samples=[7, 1 << 31])
    )
    with pytest.raises(Error, match="arrange: place 1: want a sample's number, got"):
        words.arrange_reply([7, bad], packed=packed)


def test_a_deadline_passes_or_is_given_up():
    assert 50 < Deadline.after(60).remaining_s <= 60
    assert not Deadline.after(60).over
    assert Deadline.after(-1).over
    assert Deadline.after(-1).remaining_s == 0
    assert Deadline(at_s=Deadline.after(60).at_s, wanted=lambda: False).over


def test_kinds_are_those_of_everybody():
    assert {k.name: int(k) for k in Kind} == {k.name: int(k) for k in workers.Kind}


def test_what_is_told_of_an_error():
    said = told(Error(Kind.EXHAUSTED, "no\nsamples " + "é" * 4000, hint="wait"))
    assert (said.kind, said.hint) == (Kind.EXHAUSTED, "wait")
    assert len(said.message.encode()) <= 2048
    assert said.message.endswith("…")
    assert "\n" not in said.message
    assert told(KeyError("loss")).message == "KeyError: 'loss'"
    assert told(KeyError("loss")).kind is Kind.INTERNAL


@dataclass(frozen=True)
class Settings:
    depth: int
    share: float = 1.0


def test_a_configuration_decodes_into_a_dataclass():
    raw = msgspec.msgpack.encode({"depth": 3, "share": 0.5})
    assert Config.read(raw, seed=7).decode(Settings) == Settings(3, 0.5)
    assert Config.read(b"", seed=7).values == {}
    with pytest.raises(Error, match="Expected `int`, got `str`"):
        Config(seed=1, values={"depth": "x"}).decode(Settings)
    with pytest.raises(Error, match="Settings has no field for key dept"):
        Config(seed=1, values={"depth": 3, "dept": 1}).decode(Settings)
    with pytest.raises(Error, match="decode configuration"):
        Config.read(b"\xc1", seed=7)


@pytest.mark.parametrize(
    ("type", "default"),
    [
        (Type.INT, "x"),
        (Type.INT, True),
        (Type.INT, 1 << 63),
        (Type.NUMBER, "1"),
        (Type.TEXTS, ["a", 1]),
        ("int", 1),
    ],
)
def test_a_default_is_of_its_type(type, default):
    with pytest.raises(Error, match="schema key a: "):
        Field(key="a", type=type, default=default)


@pytest.mark.parametrize("type", list(Type))
def test_every_default_travels(type):
    message = words.field_message(Field(key="a", type=type, min=0 if type is Type.INT else None))
    assert message.HasField("default")
    assert message.HasField("min") is (type is Type.INT)
    assert message.default.WhichOneof("value") == {"bool": "flag"}.get(type.value, type.value)
    assert not words.field_message(Field(key="a", type=type, required=True)).HasField("default")


def test_another_version_of_the_questions_is_refused():
    with pytest.raises(Error, match="want API version 1, got 2"):
        Service(Good()).configure(pb.ConfigureRequest(api_version=2), Deadline.after(60))


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), max_size=6), st.lists(st.integers(0, 7), max_size=7), st.integers(0, 7))
def test_the_judge_of_orders_is_a_multiset(pool, answer, count):
    """Good is as many as asked, drawn from the pool without putting back."""
    candidates = [Candidate(sample=s, tokens=1, supervised=1, anchors=1, source=0) for s in pool]
    request = ArrangeRequest(
        epoch=1, count=count, left=len(pool), total=len(pool), pool=Pool.of(candidates),
        sources=(scheduler.Source(name="x", loss=None),), deadline=Deadline.after(60),
    )  # fmt: skip
    good = len(answer) == min(count, len(pool)) and all(answer.count(s) <= pool.count(s) for s in answer)
    assert (judging.arrange(request, answer) is None) is good


LEFT = [
    (300, 10, testing.FAILED, r"want as much .* got threads: (\d+) before (\d+) calls, (\d+) after"),
    (9, 10, testing.FAILED, r"want as much .* got threads: (\d+) before (9) calls, (\d+) after"),
    (300, 0, testing.SKIPPED, r"it is too slow to tell: 1 calls took 0 s, want 8 or more"),
]


@pytest.mark.parametrize(("calls", "within_s", "status", "says"), LEFT)
def test_what_grows_with_every_question_is_found(monkeypatch, calls, within_s, status, says):
    """By as many calls as there is the time for, if these tell."""
    monkeypatch.setattr("dflash_runner.scheduler.kit._CALLS", calls)
    monkeypatch.setattr("dflash_runner.scheduler.kit._CALLS_S", within_s)
    gone, threads = threading.Event(), []

    class Leaks(Least):
        def arrange(self, request):
            threads.append(threading.Thread(target=gone.wait, daemon=True))
            threads[-1].start()
            return scheduler.first(request)

    try:
        results = {r.name: r for r in testing.check(Leaks, deadline_s=PATIENT_S)}
    finally:
        gone.set()
        for thread in threads:  # the next test counts
            thread.join()
    left = results["leaves nothing behind"]
    assert left.status == status
    said = re.fullmatch(says, left.detail)
    assert said
    if status == testing.FAILED:
        assert int(said[3]) - int(said[1]) >= int(said[2]) - 10
        assert int(said[3]) > int(said[1])


def test_few_calls_say_what_they_do_not_see(monkeypatch):
    monkeypatch.setattr("dflash_runner.scheduler.kit._CALLS", 12)
    results = {r.name: r for r in testing.check(Good, deadline_s=PATIENT_S)}
    left = results["leaves nothing behind"]
    assert left.status == testing.OK
    assert left.detail.endswith("; it is slow: with 12 calls, less than 6 MiB a call is not seen")
