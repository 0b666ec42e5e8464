"""A drafter with compiled attention and a fake compiler, for tests of the compile contract."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch._dynamo.callback
from dflash_runner import config, flex
from dflash_runner.attention import Attend, Rule
from dflash_runner.certificate import Certificate
from dflash_runner.config import Configuration
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.flex import Flex
from dflash_runner.operations import PLAIN
from dflash_runner.trainer import Trainer
from dflash_runner.warmup import Clock, warm_up
from dflash_runner.warmup_drafter import DrafterSubject
from dflash_runner.watch import Watch
from fake_compiler import FakeCompiler, allow_cpu
from test_tiles import make_rule
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint
from worker_host import BUCKETS, configuration, make_inputs

OPERATOR = importlib.import_module("torch._higher_order_ops.flex_attention")

MARKS = [
    # dynamo looks at the gradient of whatever it is given, queries that are no leaves included
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),  # told once: no guard
]


def settings_in(directory: Path) -> Configuration:
    """A drafter's, as on a GPU but for the device, which no message may say."""
    make_inputs(directory)
    message = configuration(directory)
    message.training.compute_dtype = "bfloat16"
    return dataclasses.replace(config.from_message(message), attention="flex")


@contextlib.contextmanager
def watching(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """The process's counters, taken out again afterwards; flex attention may be traced on the CPU."""
    monkeypatch.setattr(OPERATOR, "_math_attention_inner", OPERATOR._math_attention_inner)  # noqa: SLF001
    allow_cpu(monkeypatch)
    torch._dynamo.reset()  # noqa: SLF001
    watch = Watch()
    yield watch
    gc.collect()  # a checkpointed region that raised holds its hooks until its frames are gone
    torch._dynamo.callback.callback_handler.remove_start_callback(watch._on_compile)  # noqa: SLF001
    torch.compiler.set_stance("default")
    torch._dynamo.reset()  # noqa: SLF001


class Worker:
    """A drafter with the fake compiler, and what its role would do with it."""

    def __init__(self, settings: Configuration, watch: Watch) -> None:
        """Not warmed up."""
        self.settings, self.watch = settings, watch
        self.compiler = FakeCompiler()
        self.flex = Flex(settings.flex, backend=self.compiler)
        self.trainer = Trainer(settings, attention=self.flex, operations=PLAIN)
        self.subject = DrafterSubject(self.trainer, configuration=settings)

    def certify(self) -> Certificate:
        """Warm up; afterwards the watch is sealed."""
        return warm_up(
            self.subject,
            configuration=self.settings,
            watch=self.watch,
            clock=Clock(0.0),
            progress=lambda _: None,
        )

    def order(self, bucket: int) -> None:
        """One `train`, as the role does it."""
        self.subject.run(bucket)
        self.watch.check()

    def refuses(self, match: str) -> None:
        """Every later order fails too, with the reason."""
        for bucket in BUCKETS:
            with pytest.raises(WorkerError, match=match) as refused:
                self.order(bucket)
            assert refused.value.kind is Kind.FATAL
        assert self.watch.dense_calls == 0


class Replaced:
    """An attention that does something else in its place."""

    def __init__(self, flex: Flex, attend: Callable[..., Tensor]) -> None:
        """Keep the counter of the real one."""
        self.counter, self._attend = flex.counter, attend

    def over(self, rule: Rule) -> Attend:
        """The other thing, under `rule`."""
        return lambda *tensors: self._attend(rule, *tensors)


def eagerly(rule: Rule, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Flex attention without the compiler, in a checkpointed region."""
    mask = flex.block_mask(rule)

    def region(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return flex_attention(query, key, value, block_mask=mask, enable_gqa=True)

    return checkpoint(region, query, key, value, use_reentrant=False)


def drawn(rule: Rule, *, heads: int = 4, width: int = 16, seed: int = 0) -> list[Tensor]:
    """Queries, keys and values for a rule, bfloat16 with gradients."""
    rows, length = rule.documents_BS.shape
    queries = rule.anchors_BN.shape[1] * rule.block_size
    generator = torch.Generator().manual_seed(seed)
    shapes = [(heads, queries), (2, length + queries), (2, length + queries)]
    return [
        torch.randn(rows, *shape, width, generator=generator).to(flex.DTYPE).requires_grad_()
        for shape in shapes
    ]


def rule_of(length: int, *, seed: int = 0) -> Rule:
    """Of one row of three runs."""
    return make_rule(seed=seed, rows=1, length=length, anchors=20, block_size=8, documents=2)
