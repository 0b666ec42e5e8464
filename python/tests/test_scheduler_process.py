"""A plugin's process under a scripted host: handshake, mutual TLS, go-plugin's services, and every end."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from dflash_runner.scheduler import calls, serving
from dflash_runner.scheduler import pair as pairs
from dflash_runner.scheduler.pair import Pair
from dflash_runner.scheduler.v1 import scheduler_pb2 as pb

DEADLINE_S = 60.0
PYTHON = Path(__file__).resolve().parents[1]
PAIRS = PYTHON / "tests" / "pairs"  # made for these tests; a run's are its host's
PLUGIN = """
import sys, threading, time
from dflash_runner import scheduler

print("imported", end=" ")  # stays in the buffer until the handshake is over

class Mine(scheduler.Scheduler):
    name, version = "mine", "1.0.0"

    def arrange(self, request):
        print("asked for", request.count)
        if request.count == 7:
            threading.Event().wait()
        if request.count == 9:
            sys.exit(9)
        if request.count == 6:
            raise KeyError("six")
        if request.count == 5:
            print("soon" if request.deadline.remaining_s <= 0.02 else "later")
            while not request.deadline.over:
                time.sleep(0.001)
        if request.count == 4:
            while not request.deadline.over:
                time.sleep(0.001)
            print("not wanted" if request.deadline.remaining_s else "too late", flush=True)
        if request.count == 8:
            raise scheduler.Error(scheduler.Kind.EXHAUSTED, "no samples: \\u00fc", hint="w\\u00e4it")
        return scheduler.first(request)

    def observe(self, event):
        if event.number == 2:
            raise KeyError("two")
        print("observed", event.number, event.worker, event.name)

scheduler.serve(Mine())
print("left in order")
"""


def pair_fd(text: bytes) -> int:
    """A pipe that holds a pair, as the host hands it over."""
    read, write = os.pipe()
    os.write(write, text)
    os.close(write)
    return read


def pair_of(name: str) -> Pair:
    """One of the tests' pairs."""
    return pairs.take({pairs.VARIABLE: str(pair_fd((PAIRS / f"{name}.pem").read_bytes()))})


class Host:
    """One plugin, as the supervisor has it."""

    def __init__(self, directory: Path, code: str, parent: list[str]) -> None:
        self.own = pair_of("host")
        given = pair_fd((PAIRS / "plugin.pem").read_bytes())
        environment = {
            "PYTHONPATH": str(PYTHON),
            "PYTHONDONTWRITEBYTECODE": "1",
            serving.COOKIE_NAME: serving.COOKIE_VALUE,
            "PLUGIN_UNIX_SOCKET_DIR": str(directory),
            "PLUGIN_CLIENT_CERT": self.own.certificate.decode(),
            pairs.VARIABLE: str(given),
        }
        self.process = subprocess.Popen(
            [*parent, sys.executable, "-c", code],
            env=environment,
            pass_fds=[given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.given = os.readlink(f"/proc/self/fd/{given}")
        os.close(given)
        self.line = self.process.stdout.readline().rstrip("\n")

    def channel(self, own: Pair) -> grpc.Channel:
        """A connection with a pair of the client's."""
        credentials = grpc.ssl_channel_credentials(pair_of("plugin").certificate, own.key, own.certificate)
        options = [("grpc.ssl_target_name_override", "localhost")]
        return grpc.secure_channel(f"unix:{self.line.split('|')[3]}", credentials, options)

    def ended(self) -> tuple[int, str]:
        """The exit code and what was printed, once it ended by itself."""
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, errors


@contextlib.contextmanager
def hosted(directory: Path, code: str = PLUGIN, parent: list[str] | None = None) -> Iterator[Host]:
    """A plugin that shook hands."""
    host = Host(directory, code, parent or [])
    try:
        yield host
    finally:
        host.process.kill()
        host.process.communicate(timeout=DEADLINE_S)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with hosted(tmp_path) as host:
        yield host


def arrange(channel: grpc.Channel, count: int) -> Any:
    call = channel.unary_unary(
        f"/{calls.SERVICE}/Arrange", pb.ArrangeRequest.SerializeToString, pb.ArrangeReply.FromString
    )
    pool = pb.Pool(sample=[4, 5], tokens=[1, 1], supervised=[1, 1], anchors=[1, 1], source=[0, 0])
    message = pb.ArrangeRequest(
        epoch=1, count=count, left=2, total=2, pool=pool, sources=[pb.Source(name="a")]
    )
    return call.future(message, timeout=DEADLINE_S)


def question(number: int, count: int, deadline_ms: int = 60_000) -> Any:
    ones = b"\1\1"
    columns = pb.Columns(places=2, sample=b"\4\5", tokens=ones, supervised=ones, anchors=ones, source=b"\0\0")
    message = pb.ArrangeRequest(
        epoch=1, count=count, left=2, total=2, columns=columns, sources=[pb.Source(name="a")]
    )
    return pb.Question(number=number, deadline_ms=deadline_ms, arrange=message)


def given(answer: Any) -> list[int]:
    """An order as a stream brings it."""
    return array("I", answer.arrange.packed).tolist()


class Stream:
    """A stream of questions, one at a time."""

    def __init__(self, channel: grpc.Channel) -> None:
        call = channel.stream_stream(
            f"/{calls.SERVICE}/Ask", pb.Question.SerializeToString, pb.Answer.FromString
        )
        self._questions = queue.SimpleQueue()
        self.call = call(iter(self._questions.get, None), timeout=DEADLINE_S)

    def ask(self, question: Any) -> Any:
        """The next answer."""
        self.send(question)
        return next(self.call)

    def send(self, question: Any) -> None:
        """Ask without waiting."""
        self._questions.put(question)

    def close(self) -> None:
        """End it, as a host may."""
        self._questions.put(None)


def raw(channel: grpc.Channel, method: str, request: bytes = b"") -> bytes:
    return channel.unary_unary(method)(request, timeout=DEADLINE_S)


def shut_down(channel: grpc.Channel) -> None:
    assert raw(channel, "/plugin.GRPCController/Shutdown") == b""


def test_a_plugin_lives_and_ends_in_order(host: Host, tmp_path: Path) -> None:
    parts = host.line.split("|")
    assert parts[:3] == ["1", "1", "unix"]
    assert Path(parts[3]).parent == tmp_path
    assert parts[4] == "grpc"
    pem = (PAIRS / "plugin.pem").read_text().split("-----BEGIN CERTIFICATE-----")[1]
    assert parts[5] == "".join(pem.split("\n")[1:-2]).rstrip("=")
    with host.channel(host.own) as channel:
        stdio = channel.unary_stream("/plugin.GRPCStdio/StreamStdio")(b"", timeout=DEADLINE_S)
        assert raw(channel, "/grpc.health.v1.Health/Check", b"\x0a\x06plugin") == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as refused:
            raw(channel, "/grpc.health.v1.Health/Check", b"\x0a\x05other")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert list(arrange(channel, 1).result().samples) == [4]
        shut_down(channel)
        code, errors = host.ended()
        assert (code, errors) == (0, "imported asked for 1\nleft in order\n")

        stdio.cancel()


def test_an_error_has_its_kind_and_hint(host: Host) -> None:
    with host.channel(host.own) as channel:
        asked = arrange(channel, 8)
        assert asked.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert asked.details() == "no samples: ü"
        trailers = dict(asked.trailing_metadata())
        assert trailers[calls.KIND_TRAILER] == "exhausted"
        assert trailers[calls.HINT_TRAILER].decode() == "wäit"
        shut_down(channel)
        code, errors = host.ended()
        assert code == 0
        assert "Traceback" not in errors  # what a plugin says on purpose is no accident


def test_questions_of_a_stream_are_answered_each(host: Host) -> None:
    """An error, an exception and an unknown question end neither the stream nor the process."""
    with host.channel(host.own) as channel:
        stream = Stream(channel)
        answer = stream.ask(question(70_000, 1))
        assert (answer.number, given(answer)) == (70_000, [4])
        answer = stream.ask(question(3, 8))
        refusal = pb.Refusal(kind="exhausted", message="no samples: ü", hint="wäit")
        assert answer == pb.Answer(number=3, refusal=refusal)
        answer = stream.ask(question(1, 6))
        assert answer == pb.Answer(number=1, refusal=pb.Refusal(kind="internal", message="KeyError: 'six'"))
        answer = stream.ask(pb.Question(number=5, deadline_ms=1))
        assert (answer.number, answer.refusal.kind) == (5, "not_found")
        assign = pb.AssignRequest(row=1, free=[pb.Worker(role="target")])
        answer = stream.ask(pb.Question(number=6, deadline_ms=60_000, assign=assign))
        assert (answer.number, answer.refusal.kind) == (6, "not_found")  # this plugin assigns nothing
        assert given(stream.ask(question(2, 2))) == [4, 5]
        stream.close()
        assert stream.call.code() is grpc.StatusCode.OK
        shut_down(channel)
        code, errors = host.ended()
        assert code == 0
        assert errors.count("Traceback") == 1


def test_a_questions_deadline_is_its_own(host: Host) -> None:
    with host.channel(host.own) as channel:
        stream = Stream(channel)
        assert given(stream.ask(question(1, 5, deadline_ms=20))) == [4, 5]
        assert given(stream.ask(question(2, 2))) == [4, 5]
        stream.close()
        shut_down(channel)
        errors = host.ended()[1]
        assert "soon\n" in errors


def test_a_dropped_stream_tells_that_its_answer_is_not_wanted(host: Host) -> None:
    with host.channel(host.own) as channel:
        stream = Stream(channel)
        stream.send(question(1, 4, deadline_ms=10_000))
        assert host.process.stderr.readline() == "imported asked for 4\n"
        stream.call.cancel()
        assert host.process.stderr.readline() == "not wanted\n"
        assert given(Stream(channel).ask(question(2, 2))) == [4, 5]


def test_an_open_stream_does_not_keep_the_process(host: Host) -> None:
    with host.channel(host.own) as channel:
        stream = Stream(channel)
        assert given(stream.ask(question(1, 1))) == [4]
        shut_down(channel)
        code, errors = host.ended()
        assert (code, errors) == (0, "imported asked for 1\nleft in order\n")
        stream.close()


def test_events_come_in_order_and_an_exception_loses_one(host: Host) -> None:
    with host.channel(host.own) as channel:
        tell = channel.stream_unary(
            f"/{calls.SERVICE}/Observe", pb.Event.SerializeToString, pb.ObserveReply.FromString
        )
        events = [pb.Event(number=n, name="step decided") for n in (1, 2, 3)]
        events.append(pb.Event(number=7, name="worker died", worker=pb.Worker(role="target", rank=1)))
        tell(iter(events), timeout=DEADLINE_S)
        shut_down(channel)
        code, errors = host.ended()
    assert code == 0
    assert [line for line in errors.splitlines() if "observed" in line] == [
        "imported observed 1 None step decided",
        "observed 3 None step decided",
        "observed 7 Worker(role='target', rank=1) worker died",
    ]
    assert "KeyError: 'two'" in errors


def test_its_pair_is_read_once(host: Host) -> None:
    """No descriptor leads to it once the handshake is out."""
    held = [os.readlink(entry) for entry in Path(f"/proc/{host.process.pid}/fd").iterdir()]
    assert any(link.startswith("pipe:") for link in held)
    assert host.given not in held


def test_a_stranger_is_refused(host: Host) -> None:
    with host.channel(pair_of("stranger")) as channel:
        assert arrange(channel, 1).code() is grpc.StatusCode.UNAVAILABLE
    with host.channel(host.own) as channel:
        assert list(arrange(channel, 1).result().samples) == [4]


def test_a_question_without_end_does_not_keep_the_process(host: Host) -> None:
    with host.channel(host.own) as channel:
        asked = arrange(channel, 7)
        said = host.process.stderr.readline()
        assert said == "imported asked for 7\n"
        shut_down(channel)
        assert host.ended()[0] == 0
        assert asked.code() is not grpc.StatusCode.OK


def test_sys_exit_ends_the_process(host: Host) -> None:
    with host.channel(host.own) as channel:
        assert arrange(channel, 9).code() is not grpc.StatusCode.OK
        assert host.ended()[0] == 9


def test_sigterm_ends_it_in_order(host: Host) -> None:
    for other in (signal.SIGINT, signal.SIGUSR1):
        host.process.send_signal(other)
    with host.channel(host.own) as channel:
        assert list(arrange(channel, 1).result().samples) == [4]
    host.process.send_signal(signal.SIGTERM)
    code, errors = host.ended()
    assert code == 0
    assert errors.endswith("left in order\n")


ELSEWHERE = """
import signal, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # of this thread and those it starts
"""


def test_sigterm_ends_it_whichever_thread_takes_it(tmp_path: Path) -> None:
    with hosted(tmp_path, ELSEWHERE + PLUGIN) as host:
        host.process.send_signal(signal.SIGTERM)
        code, errors = host.ended()
        assert (code, errors) == (0, "imported left in order\n")


PARENT = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], pass_fds=[int(os.environ["DFLASH_RUNNER_PAIR_FD"])])
print(child.pid, file=sys.stderr, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_its_host(tmp_path: Path) -> None:
    """Even where nobody kills its group: the host's end is enough."""
    with hosted(tmp_path, parent=[sys.executable, "-c", PARENT]) as host:
        assert host.line.startswith("1|1|unix|")
        pid = int(host.process.stderr.readline())
        fd = os.pidfd_open(pid)
        host.process.kill()
        try:
            assert select.select([fd], [], [], DEADLINE_S)[0], "it outlives its host"
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            os.close(fd)


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        (serving.COOKIE_NAME, "dflash-runner plugins test"),
        ("PLUGIN_UNIX_SOCKET_DIR", "PLUGIN_UNIX_SOCKET_DIR: want it of the host"),
        ("PLUGIN_CLIENT_CERT", "PLUGIN_CLIENT_CERT: want it of the host"),  # never without TLS
        (pairs.VARIABLE, "DFLASH_RUNNER_PAIR_FD: want it of the host"),
        ("the pair", "descriptor 0: want a key and a certificate, got 0 bytes"),
    ],
)
def test_says_what_it_is_to_a_person(missing: str, says: str, tmp_path: Path) -> None:
    environment = {
        "PYTHONPATH": str(PYTHON),
        serving.COOKIE_NAME: serving.COOKIE_VALUE,
        "PLUGIN_UNIX_SOCKET_DIR": str(tmp_path),
        "PLUGIN_CLIENT_CERT": "x",
        pairs.VARIABLE: "0",
    }
    environment.pop(missing, None)
    ended = subprocess.run(
        [sys.executable, "-c", PLUGIN],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 1
    assert says in ended.stderr.decode()
    assert b"|" not in ended.stdout
