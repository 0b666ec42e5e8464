"""A call whose error ends the worker is answered before the worker is gone."""

from __future__ import annotations

import threading
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from dflash_runner.worker import control
from dflash_runner.worker.faults import Faults
from dflash_runner.worker.loop import Loop
from dflash_runner.worker.v1 import worker_pb2_grpc
from worker_host import DEADLINE_S, configuration


def test_the_error_that_ends_the_worker_is_answered_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that answers comes to it only when the main thread is about to end the process."""
    ending = threading.Event()
    describe = control.describe

    def late(err: BaseException) -> object:
        assert ending.wait(DEADLINE_S)
        return describe(err)

    def build(*_: object) -> object:
        raise AssertionError("the device is gone")

    monkeypatch.setattr(control, "describe", late)
    loop = Loop()
    service = control.Control(loop, build=build, faults=Faults(""), certify=lambda _: None)
    server = grpc.server(futures.ThreadPoolExecutor(2))
    worker_pb2_grpc.add_WorkerServicer_to_server(service, server)
    socket = f"unix:{tmp_path}/s"
    server.add_insecure_port(socket)
    server.start()
    with grpc.insecure_channel(socket) as channel:
        stub = worker_pb2_grpc.WorkerStub(channel)
        asked = stub.Configure.future(configuration(tmp_path), timeout=DEADLINE_S)
        with pytest.raises(AssertionError, match="the device is gone"):
            loop.run()
        assert not service.settle(0.0)
        ending.set()
        assert service.settle(DEADLINE_S)
        server.stop(0)  # as the end of the process does
        assert asked.code() is grpc.StatusCode.INTERNAL
        assert "the device is gone" in asked.details()
