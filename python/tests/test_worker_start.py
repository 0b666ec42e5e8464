"""A worker's first and last acts: handshake, health, signals, and every way to end."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from dflash_runner import serve
from dflash_runner.lane import LANE_EXIT_CODE
from dflash_runner.orders import Commit, Drain, Evaluate
from dflash_runner.worker import control
from dflash_runner.worker.inbox import ORPHAN_EXIT_CODE
from dflash_runner.worker.v1 import worker_pb2
from worker_host import DEADLINE_S, PYTHON, Host, configuration, drain, make_inputs, running

NOISE = """
import os
from dflash_runner import serve
real = serve.why_not_a_plugin
def noisy(environment):
    print("noise by print", flush=True)
    os.write(1, b"noise by descriptor\\n")
    return real(environment)
serve.why_not_a_plugin = noisy
serve.leave()
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A worker that shook hands and knows nothing yet."""
    with running(tmp_path) as host:
        yield host


def call(host: Host, method: str, request: bytes) -> bytes:
    """A call of one of go-plugin's own services, by its bytes."""
    return host.channel.unary_unary(method)(request, timeout=DEADLINE_S)


def ping(path: str, *, timeout_s: float) -> bool:
    """Whether the worker acknowledges an HTTP/2 PING in time, spoken by hand."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(timeout_s)
        client.connect(path)
        frame = struct.pack(">I", 8)[1:] + b"\x06\x00" + bytes(4) + b"12345678"
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04\x00" + bytes(4) + frame)
        got = b""
        try:
            while b"\x06\x01" + bytes(4) + b"12345678" not in got:
                part = client.recv(4096)
                if not part:
                    return False
                got += part
        except TimeoutError:
            return False
        return True


def stopped(pid: int) -> bool:
    """Whether every thread of the process stands still."""
    states = [
        file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return set(states) == {"T"}


def test_says_what_it_is_to_a_person() -> None:
    """Without the cookie nothing is served, and standard output stays empty."""
    ended = subprocess.run(
        [sys.executable, "-m", "dflash_runner.serve"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PYTHON)},
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stdout == b""
    assert b"dflash-runner up" in ended.stderr


def test_greets_as_go_plugin_wants(tmp_path: Path) -> None:
    """Six fields; seven where the host knows the seventh."""
    with running(tmp_path, environment={"PLUGIN_MULTIPLEX_GRPC": "true"}) as host:
        parts = host.line.rstrip("\n").split("|")
        assert parts[:3] == ["1", "1", "unix"]
        assert parts[4:] == ["grpc", "", "false"]
        assert Path(parts[3]).parent == host.sockets
        assert Path(parts[3]).is_socket()


def test_prints_cannot_break_the_handshake(tmp_path: Path) -> None:
    """Whatever prints during the start ends up on standard error."""
    with running(tmp_path, code=NOISE) as host:
        assert host.line.startswith("1|1|unix|")
        assert drain(host) == 0
        assert host.process.stdout.read() == b""
        text = "".join(host.stderr)
        assert "noise by print" in text
        assert "noise by descriptor" in text


def test_describes_itself_before_torch(host: Host) -> None:
    """Versions come from metadata: no torch is mapped, and none was needed."""
    said = host.control.Describe(worker_pb2.DescribeRequest(), timeout=DEADLINE_S)
    assert "libtorch" not in host.maps()
    assert said.pid == host.process.pid
    assert said.lane_version == 1
    assert said.torch.startswith("2.")
    assert len(said.torch_git) == 40
    assert said.memory_bytes > 1 << 28
    assert said.environment["OMP_WAIT_POLICY"] == "passive"
    assert "PLUGIN_UNIX_SOCKET_DIR" not in said.environment


def test_serves_go_plugins_own_calls(host: Host) -> None:
    """Health of `plugin`, not of others; Shutdown ends with 0."""
    assert call(host, "/grpc.health.v1.Health/Check", b"\x0a\x06plugin") == b"\x08\x01"
    with pytest.raises(grpc.RpcError) as refused:
        call(host, "/grpc.health.v1.Health/Check", b"\x0a\x05other")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    held = host.channel.unary_stream("/plugin.GRPCStdio/StreamStdio")(b"")
    assert call(host, "/plugin.GRPCController/Shutdown", b"") == b""
    assert host.wait() == 0
    held.cancel()


def test_refuses_orders_before_the_certificate(host: Host) -> None:
    """I1, from the worker's side."""
    reply = host.ask(Commit, lineage=1, communicator=1, step=1, lr=0.1, chain=bytes(32))
    assert (reply.kind, "certificate" in reply.message) == ("unavailable", True)
    assert drain(host) == 0


def test_drains_on_sigterm_and_ignores_others(host: Host) -> None:
    """Ctrl-C in the terminal and a batch system's SIGUSR1 are the supervisor's to handle."""
    host.process.send_signal(signal.SIGINT)
    host.process.send_signal(signal.SIGUSR1)
    call(host, "/grpc.health.v1.Health/Check", b"\x0a\x06plugin")
    host.process.send_signal(signal.SIGTERM)
    assert host.wait() == 0


def test_ends_with_its_supervisor(tmp_path: Path) -> None:
    """At the lane's end, and at the death pipe's."""
    with running(tmp_path) as host:
        host.lane.shutdown(socket.SHUT_RDWR)
        assert host.wait() == ORPHAN_EXIT_CODE
    with running(tmp_path) as host:
        read, write = os.pipe()
        os.close(read)
        host.death, death = write, host.death
        os.close(death)
        assert host.wait() == ORPHAN_EXIT_CODE


@pytest.mark.parametrize(
    "frame",
    [
        b"\x83\xa4type\xa5drain\xa1v\x02\xa3seq\x01",  # another version
        b"\x83\xa4type\xa5drain\xa1v\x01\xa3seq\x07",  # out of sequence
        b"\x81",  # cut
    ],
)
def test_ends_when_the_lane_is_broken(host: Host, frame: bytes) -> None:
    """A worker trusts nothing on a lane whose rules were broken."""
    host.lane.send(frame)
    assert host.wait() == LANE_EXIT_CODE
    assert any("lane's rules" in line for line in host.stderr)


def test_refuses_a_configuration_with_its_path(host: Host, tmp_path: Path) -> None:
    """A wrong value is invalid, told by its path, and nothing was imported for it."""
    wrong = configuration(tmp_path, attention="dense")
    with pytest.raises(grpc.RpcError) as refused:
        host.control.Configure(wrong, timeout=DEADLINE_S)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "attention: want sdpa or flex, got 'dense'" in refused.value.details()
    assert dict(refused.value.trailing_metadata())[control.KIND_KEY] == "invalid"
    with pytest.raises(grpc.RpcError) as again:
        host.control.Configure(wrong, timeout=DEADLINE_S)
    assert again.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "libtorch" not in host.maps()


def test_reports_an_uncaught_error(tmp_path: Path) -> None:
    """One JSON line with the traceback's lines, and the plain traceback; exit 1."""
    with running(tmp_path, environment={"DFLASH_RUNNER_FAULT": "*:configure:1:raise"}) as host:
        with pytest.raises(grpc.RpcError):
            host.control.Configure(configuration(tmp_path), timeout=DEADLINE_S)
        assert host.wait() == 1
        lines = [json.loads(line) for line in host.stderr if line.startswith("{")]
        (told,) = [line for line in lines if line["@message"] == "uncaught exception"]
        assert told["traceback"][0] == "Traceback (most recent call last):"
        assert "fault at configure 1" in told["traceback"][-1]
        assert "Traceback (most recent call last):\n" in host.stderr


def test_shows_its_stacks(host: Host) -> None:
    """SIGUSR2 writes every thread's stack and changes nothing."""
    host.process.send_signal(signal.SIGUSR2)
    assert drain(host) == 0
    assert any("worker/loop.py" in line for line in host.stderr)


def test_answers_pings_with_the_interpreter_locked(tmp_path: Path) -> None:
    """The sign of life needs no Python: a worker in a long call is not taken for dead."""
    with running(tmp_path, environment={"DFLASH_RUNNER_FAULT": "*:configure:1:spin"}) as host:
        address = host.line.split("|")[3]
        pending = host.control.Configure.future(configuration(tmp_path))
        while not any("fault at configure" in line for line in host.stderr):
            assert host.process.poll() is None
        assert ping(address, timeout_s=10)
        host.process.send_signal(signal.SIGSTOP)  # the control: this one is not answered
        while not stopped(host.process.pid):
            assert host.process.poll() is None
        assert not ping(address, timeout_s=0.5)
        pending.cancel()


def test_dies_before_the_handshake_on_purpose(tmp_path: Path) -> None:
    """The fault that stands for a broken installation."""
    with running(tmp_path, environment={"DFLASH_RUNNER_FAULT": "*:start:1:exit"}) as host:
        assert (host.line, host.wait()) == ("", 3)


def test_target_evaluates_nothing_it_does_not_have(tmp_path: Path) -> None:
    """A missing target is told with a hint, and the worker goes on to drain."""
    make_inputs(tmp_path)
    (tmp_path / "target" / "config.json").unlink()
    with running(tmp_path) as host:
        message = configuration(tmp_path, role=worker_pb2.ROLE_TARGET)
        with pytest.raises(grpc.RpcError) as refused:
            host.control.Configure(message, timeout=DEADLINE_S)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert control.HINT_KEY in dict(refused.value.trailing_metadata())
        reply = host.ask(Evaluate, step=0, what="plain", first=0, count=1, new_tokens=4, nbytes=0)
        assert reply.kind == "unavailable"
        host.send(Drain)
        assert type(host.receive()).__name__ == "Drained"


def test_cookie_agrees_with_the_host() -> None:
    """The host's Go source has the same name, value and version."""
    source = (PYTHON.parent / "plugins" / "worker" / "handshake.go").read_text()
    assert f'"{serve.COOKIE_NAME}"' in source
    assert f'"{serve.COOKIE_VALUE}"' in source
    assert f"ProtocolVersion = {serve.PROTOCOL_VERSION}\n" in source
