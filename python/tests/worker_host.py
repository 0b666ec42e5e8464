"""A scripted supervisor for one worker: the real process, its handshake, control plane and lane."""

from __future__ import annotations

import array
import contextlib
import fcntl
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from dflash_runner import serve
from dflash_runner.data_writer import DatasetWriter, write_prompts
from dflash_runner.frames import Piece
from dflash_runner.lane import decode_reply, encode_order
from dflash_runner.orders import Abort, Commit, Drain, Image, Join, Load, MapArena, Produce, Pull, Train
from dflash_runner.replies import Reply, Taken, Trained
from dflash_runner.worker.v1 import worker_pb2, worker_pb2_grpc
from tiny import VOCABULARY, make_target

DEADLINE_S = 60.0
# Puts the inherited descriptors where a worker expects them, then becomes it. Not a
# preexec_fn: that runs fork handlers of gRPC and torch here, which deadlock at times.
INHERIT = f"""
import fcntl, os, signal, sys
given = [int(fd) for fd in sys.argv[1:3]]
death, lane = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in given]
for fd in given:
    os.close(fd)
os.dup2(death, {serve.DEATH_FD})
os.dup2(lane, {serve.LANE_FD})
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[3], sys.argv[3:])
"""
_NUMBERS = itertools.count()  # of this process's workers
PYTHON = Path(__file__).resolve().parents[1]
BUCKETS = (24, 40)
LAYER_IDS = (1, 2, 3)
WIDTH = 3 * 32
SAMPLES = (10, 12, 18, 20, 9, 16, 22, 11)  # tokens of each

PROMPTS = ((1, 2, 3, 4), (9, 8, 7, 6), (5, 5, 6, 6))


def make_inputs(directory: Path) -> None:
    """A tiny target, data and prompts, in `directory`."""
    make_target().save_pretrained(directory / "target")
    for name, seed in (("train", 0), ("heldout", 1)):
        (directory / name).mkdir()
        with DatasetWriter(directory / name, sources=["made"], tokenizer_sha256="0" * 64) as writer:
            for number, length in enumerate(SAMPLES):
                tokens = [(7 * i + 13 * number + seed) % (VOCABULARY - 1) for i in range(length)]
                writer.add(tokens, [int(i >= 2) for i in range(length)], source=0)
            writer.finish()
    write_prompts(directory / "prompts.safetensors", np.array(PROMPTS))
    (directory / "groups").mkdir()


def configuration(directory: Path, **changes: Any) -> Any:
    """A worker's configuration over `make_inputs`; a drafter's, of one, unless changed."""
    made = worker_pb2.Configuration(
        role=worker_pb2.ROLE_DRAFTER,
        world_size=1,
        generation=1,
        device="cpu",
        threads=1,
        seed=11,
        attention="sdpa",
        target=worker_pb2.Target(
            directory=str(directory / "target"), dtype="float32", layer_ids=list(LAYER_IDS)
        ),
        drafter=worker_pb2.Drafter(
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
            mask_token_id=VOCABULARY - 1,
            target_layers=5,
            max_position_embeddings=512,
        ),
        training=worker_pb2.Training(
            buckets=list(BUCKETS),
            anchors=8,
            gamma=4.0,
            weight_constant=40.0,
            beta1=0.9,
            beta2=0.95,
            epsilon=1e-8,
            weight_decay=0.01,
            clip_norm=1.0,
            rows_per_step=4,
            compute_dtype="float32",
        ),
        communicator_directory=str(directory / "groups"),
        train_data=str(directory / "train"),
        heldout_data=str(directory / "heldout"),
        prompts=str(directory / "prompts.safetensors"),
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A planned row."""

    row: int
    bucket: int
    pieces: tuple[Piece, ...]
    epoch: int = 0


ROWS = (
    Row(row=1, bucket=40, pieces=(Piece(0, 0, 0, 10, 3), Piece(2, 0, 10, 18, 4))),
    Row(row=2, bucket=24, pieces=(Piece(3, 0, 0, 20, 5),)),
    Row(row=3, bucket=40, pieces=(Piece(1, 0, 0, 12, 4), Piece(6, 0, 12, 22, 4))),
    Row(row=4, bucket=24, pieces=(Piece(4, 0, 0, 9, 3), Piece(7, 0, 9, 11, 3))),
)


class Host:
    """One worker and the supervisor's ends of everything."""

    def __init__(self, directory: Path, *, environment: dict[str, str] | None = None, code: str = "") -> None:
        """Spawn the worker and take its handshake.

        Args:
            directory: for its socket.
            environment: added to the little that a worker gets.
            code: run by the interpreter in the worker's place, before it serves.
        """
        self.sockets = directory / f"s{os.getpid()}-{next(_NUMBERS)}"
        self.sockets.mkdir(mode=0o700)
        self.death_read, self.death = os.pipe()
        self.lane, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.lane.settimeout(DEADLINE_S)
        self.seq = 0
        command = [sys.executable, "-m", "dflash_runner.serve"]
        if code:
            command = [sys.executable, "-c", code]
        inherited = (self.death_read, theirs.fileno())
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", INHERIT, *map(str, inherited), *command],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(PYTHON),
                "OMP_NUM_THREADS": "1",
                "PLUGIN_UNIX_SOCKET_DIR": str(self.sockets),
                "PLUGIN_PROTOCOL_VERSIONS": "1",
                serve.COOKIE_NAME: serve.COOKIE_VALUE,
                **(environment or {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=inherited,
        )
        theirs.close()
        os.close(self.death_read)
        self.stderr: list[str] = []
        self._reader = threading.Thread(target=self._drain_stderr, daemon=True)
        self._reader.start()
        self.line = self.process.stdout.readline().decode()
        self._channel: grpc.Channel | None = None

    @property
    def channel(self) -> grpc.Channel:
        """The control plane's connection."""
        if self._channel is None:
            self._channel = grpc.insecure_channel("unix:" + self.line.split("|")[3])
        return self._channel

    @property
    def control(self) -> worker_pb2_grpc.WorkerStub:
        """The worker's service."""
        return worker_pb2_grpc.WorkerStub(self.channel)

    def start(self, message: Any) -> tuple[Any, Any, list[Any]]:
        """Configure and warm up: what was configured, the certificate, and the progress before it."""
        configured = self.control.Configure(message, timeout=DEADLINE_S)
        replies = list(self.control.WarmUp(worker_pb2.WarmUpRequest(), timeout=DEADLINE_S))
        return configured, replies[-1].certificate, [reply.progress for reply in replies[:-1]]

    def send(self, order: type, *, fd: int | None = None, **fields: Any) -> int:
        """Send an order; its seq."""
        self.seq += 1
        frame = encode_order(order(seq=self.seq, **fields))
        rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        self.lane.sendmsg([frame], rights)
        return self.seq

    def receive(self) -> Reply:
        """The next reply."""
        frame = self.lane.recv(65536)
        if not frame:
            raise EOFError("the worker closed its lane:\n" + "".join(self.stderr))
        return decode_reply(frame)

    def ask(self, order: type, *, fd: int | None = None, **fields: Any) -> Reply:
        """Send an order, and its final reply."""
        seq = self.send(order, fd=fd, **fields)
        reply = self.receive()
        if type(reply) is Taken:
            assert (order, reply.seq, reply.step) == (Image, seq, fields["step"])
            reply = self.receive()
        assert reply.seq == seq, (reply, seq)
        return reply

    def wait(self) -> int:
        """The exit code, all of standard error having been read."""
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return code

    def end(self) -> None:
        """Kill what is left and close everything."""
        if self._channel is not None:
            self._channel.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.wait()
        self.process.stdout.close()
        self.process.stderr.close()
        self.lane.close()
        os.close(self.death)

    def maps(self) -> str:
        """What the process has mapped."""
        return Path(f"/proc/{self.process.pid}/maps").read_text()

    def _drain_stderr(self) -> None:
        for line in self.process.stderr:
            self.stderr.append(line.decode(errors="replace"))


def memfd(name: str, size: int, *, seal: bool = False) -> int:
    """A memfd of `size` bytes, sealed against another size where asked."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if seal:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


class Cluster:
    """A target and drafters, driven by hand."""

    def __init__(
        self,
        directory: Path,
        *,
        drafters: int,
        environment: dict[str, str] | None = None,
        target_environment: dict[str, str] | None = None,
        change: Callable[[Any], None] = lambda _: None,
    ) -> None:
        """Start and warm up everything, and map one arena of three slots.

        Args:
            directory: of `make_inputs`.
            drafters: how many.
            environment: of the drafters.
            target_environment: of the target.
            change: made to every worker's configuration.
        """
        self.directory = directory
        self.target = Host(directory, environment=target_environment)
        self.drafters = [Host(directory, environment=environment) for _ in range(drafters)]
        self.communicator, self.lineage, self.step = 0, 1, 0
        self.next_row = 1
        self.versions = [0, 0, 0]
        self.configured: list[Any] = []
        self.certificates: list[Any] = []
        hosts = [(self.target, worker_pb2.ROLE_TARGET, 0)]
        hosts += [(host, worker_pb2.ROLE_DRAFTER, rank) for rank, host in enumerate(self.drafters)]
        for host, role, rank in hosts:
            message = configuration(directory, role=role, rank=rank, world_size=drafters)
            change(message)
            configured, certificate, _ = host.start(message)
            self.configured.append(configured)
            self.certificates.append(certificate)
        self.slot_bytes = self.configured[0].slot_bytes
        self.arena = memfd("arena", 3 * self.slot_bytes, seal=True)
        for host in (self.target, *self.drafters):
            self.map_arena(host)

    def map_arena(self, host: Host) -> None:
        """Give a worker the arena."""
        host.ask(
            MapArena,
            fd=self.arena,
            arena=1,
            kind="memfd",
            write=host is self.target,
            slots=3,
            slot_bytes=self.slot_bytes,
        )

    def produce(self, row: Row, *, slot: int = 0) -> Any:
        """The handle of a row that the target made."""
        self.versions[slot] += 1
        reply = self.target.ask(
            Produce,
            row=row.row,
            epoch=row.epoch,
            bucket=row.bucket,
            pieces=list(row.pieces),
            arena=1,
            slot=slot,
            version=self.versions[slot],
        )
        return reply.handle

    def pull(self, host: Host, row: Row, *, slot: int = 0) -> Reply:
        """Make a row and give it to a drafter."""
        handle = self.produce(row, slot=slot)
        return host.ask(
            Pull, row=row.row, epoch=row.epoch, bucket=row.bucket, pieces=list(row.pieces), handle=handle
        )

    def place(self, *, step: int | None = None) -> dict[str, int]:
        """What an order about the open step names; `step` another one."""
        return {
            "lineage": self.lineage,
            "communicator": self.communicator,
            "step": self.step + 1 if step is None else step,
        }

    def join(self) -> None:
        """A new communicator of all drafters."""
        self.communicator += 1
        for rank, host in enumerate(self.drafters):
            host.send(Join, **self.place(step=self.step), world=len(self.drafters), rank=rank)
        for host in self.drafters:
            assert host.receive().communicator == self.communicator

    def rows(self) -> list[list[Row]]:
        """Rows for a step, by rank, under numbers never used before."""
        first = self.next_row
        self.next_row += len(ROWS)
        made = [replace(row, row=first + place) for place, row in enumerate(ROWS)]
        half = len(made) // len(self.drafters)
        return [made[rank * half : (rank + 1) * half] for rank in range(len(self.drafters))]

    def pull_all(self, rows: list[list[Row]]) -> None:
        """Give every drafter its rows."""
        for host, own in zip(self.drafters, rows, strict=True):
            for row in own:
                assert self.pull(host, row).row == row.row

    def order_train(self, host: Host, own: list[Row]) -> None:
        """Order a whole step of one drafter, and take the replies up to the last micro-step's."""
        for micro, row in enumerate(own):
            last = micro == len(own) - 1
            host.send(Train, **self.place(), micro=micro, row=row.row, last=last)
            if not last:
                reply = host.receive()
                assert (reply.step, reply.micro, reply.row) == (self.step + 1, micro, row.row)

    def vote(self, host: Host) -> Any:
        """The vote that follows the last micro-step's reply."""
        assert type(host.receive()) is Trained
        return host.receive()

    def train(self, rows: list[list[Row]]) -> list[Any]:
        """Every drafter's vote for rows[rank], which it holds."""
        for host, own in zip(self.drafters, rows, strict=True):
            self.order_train(host, own)
        return [self.vote(host) for host in self.drafters]

    def advance(self, step: int) -> None:
        """Train and commit up to `step`."""
        while self.step < step:
            rows = self.rows()
            self.pull_all(rows)
            self.train(rows)
            self.commit()

    def commit(self, *, lr: float = 1e-3) -> None:
        """Commit the open step on all drafters."""
        for host in self.drafters:
            reply = host.ask(Commit, **self.place(), lr=lr, chain=chain(self.step + 1))
            assert reply.step == self.step + 1
        self.step += 1

    def abort(self) -> list[Any]:
        """Abort the open step on all drafters."""
        return [host.ask(Abort, **self.place()) for host in self.drafters]

    def digests(self) -> list[bytes]:
        """Every drafter's digest of its parameters."""
        place = self.place(step=self.step)
        return [host.ask(Image, **place, write=False, nbytes=0).parameters for host in self.drafters]

    def image(self, host: Host) -> tuple[int, Any]:
        """A drafter's image, and what it said of it."""
        fd = memfd("image", self.configured[1].image_bytes)
        reply = host.ask(
            Image, fd=fd, **self.place(step=self.step), write=True, nbytes=self.configured[1].image_bytes
        )
        return fd, reply

    def load(self, host: Host, fd: int, **changes: int) -> Reply:
        """Give a drafter another state."""
        place = self.place(step=self.step) | changes
        return host.ask(Load, fd=fd, **place, nbytes=self.configured[1].image_bytes)

    def end(self) -> None:
        """End all workers."""
        for host in (self.target, *self.drafters):
            host.end()
        os.close(self.arena)


def chain(step: int) -> bytes:
    """Some chain of a step."""
    return bytes([step % 256]) * 32


@contextlib.contextmanager
def running(directory: Path, **options: Any) -> Iterator[Host]:
    """A host that is ended whatever happens."""
    host = Host(directory, **options)
    try:
        yield host
    finally:
        host.end()


def drain(host: Host) -> int:
    """The exit code of a worker that was told to drain, which must answer first."""
    assert type(host.ask(Drain)).__name__ == "Drained"
    return host.wait()
