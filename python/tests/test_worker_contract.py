"""A compile after ready fails the order in hand and every one after it, whatever the role and the order."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.callback
from dflash_runner import config
from dflash_runner.drafter import DrafterRole
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.orders import Commit, Evaluate, Join, Train
from dflash_runner.target import TargetRole
from dflash_runner.watch import Watch
from dflash_runner.worker.faults import Faults
from dflash_runner.worker.v1 import worker_pb2
from worker_host import chain, configuration, make_inputs

FLEX = importlib.import_module("torch._higher_order_ops.flex_attention")  # the attribute is the operator
PLACE = {"lineage": 1, "communicator": 1, "step": 1}
TRAIN = Train(seq=2, **PLACE, micro=0, row=0, last=True)
COMMIT = Commit(seq=3, **PLACE, lr=1e-3, chain=chain(1))


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """The one of the role; what it put into the process is taken out again."""
    monkeypatch.setattr(FLEX, "_math_attention_inner", FLEX._math_attention_inner)  # noqa: SLF001
    watch = Watch()
    for role in ("drafter", "target"):
        monkeypatch.setattr(f"dflash_runner.{role}.prepare_torch", lambda _: None)  # of this process
        monkeypatch.setattr(f"dflash_runner.{role}.Watch", lambda: watch)
    yield watch
    torch._dynamo.callback.callback_handler.remove_start_callback(watch._on_compile)  # noqa: SLF001
    torch.compiler.set_stance("default")
    torch._dynamo.reset()  # noqa: SLF001


def slips_through() -> None:
    """A compile that no stance stopped."""
    torch.compiler.set_stance("default")
    torch.compile(lambda x: x - 1, backend="eager")(torch.ones(3))


def refuses(role: Any, order: Any) -> None:
    """No reply, but the reason."""
    sent: list[Any] = []
    with pytest.raises(WorkerError, match=r"compile contract.* got 1 and 0") as refused:
        role.work(order, fd=None, send=sent.append)
    assert refused.value.kind is Kind.FATAL
    assert sent == []


@pytest.mark.parametrize("during", ["train", "commit"])
def test_of_a_drafter(tmp_path: Path, watch: Watch, during: str) -> None:
    """Neither `trained` nor a vote leaves it, nor `committed`."""
    make_inputs(tmp_path)
    role = DrafterRole(config.from_message(configuration(tmp_path)), faults=Faults(""), started=0.0)
    role.warm_up(lambda _: None)
    sent: list[Any] = []
    role.work(Join(seq=1, **PLACE | {"step": 0}, world=1, rank=0), fd=None, send=sent.append)
    if during == "commit":
        role.work(TRAIN, fd=None, send=sent.append)
    watch.check()
    slips_through()
    refuses(role, TRAIN if during == "train" else COMMIT)


def test_of_a_target(tmp_path: Path, watch: Watch) -> None:
    """No figure leaves it, now or later."""
    make_inputs(tmp_path)
    message = configuration(tmp_path, role=worker_pb2.ROLE_TARGET)
    role = TargetRole(config.from_message(message), started=0.0)
    role.warm_up(lambda _: None)
    order = Evaluate(seq=1, step=0, what="plain", first=0, count=1, new_tokens=2, nbytes=0)
    sent: list[Any] = []
    role.work(order, fd=None, send=sent.append)
    assert len(sent) == 1
    watch.check()
    slips_through()
    refuses(role, order)
    refuses(role, order)
