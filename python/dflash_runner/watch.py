"""What the compile contract counts: attention calls, dense flex attention, compiles.

A dense call is one that reaches `_math_attention_inner` of the flex attention operator, forward or
backward: the slow path that torch takes without a word.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType, TracebackType
from typing import Any, Protocol, Self

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile

from dflash_runner.attention import AttentionCounter
from dflash_runner.errors import Kind, WorkerError

_FLEX = "torch._higher_order_ops.flex_attention"
_COMPILER = "torch._dynamo"  # nothing compiles before it is imported, which takes seconds

_FUNCTIONS = ("linear", "_scaled_mm")  # of torch, that a drafter's layers and head are multiplied by
_PRODUCTS = ("gemm", "nvjet", "cutlass", "xmma", "splitk", "wgmma", "aten::mm", "aten::_scaled_mm")
_NAME_LENGTH = 120  # characters of a product's name that are kept: templates are endless


class Watch:
    """Counts compiles and dense calls of this process from now on; `seal` makes them errors.

    The compiler and the flex operator are not imported for it: where they are not there yet, they
    are watched from the moment they are, before anybody can use them.
    """

    def __init__(self) -> None:
        """Install the counters; once in a process."""
        self.compiles = 0
        self.dense_calls = 0
        self._sealed: tuple[int, int] | None = None
        when_imported(_COMPILER, self._watch_compiler)
        when_imported(_FLEX, self._watch_flex)

    def _watch_compiler(self, compiler: ModuleType) -> None:
        """Count compile starts; refuse them outright where the watch is sealed."""
        compiler.callback.on_compile_start(self._on_compile)
        if self._sealed is not None:
            torch.compiler.set_stance("fail_on_recompile")

    def _watch_flex(self, flex: ModuleType) -> None:
        """Count and refuse the dense implementation, forward and backward."""
        flex._math_attention_inner = self._wrap(flex._math_attention_inner)  # noqa: SLF001

    def seal(self) -> None:
        """From now on a compile or a dense call is a violation, for ever on record (I3).

        Source: README, Invariants, I3.
        """
        self._sealed = (self.compiles, self.dense_calls)
        if _COMPILER in sys.modules:
            torch.compiler.set_stance("fail_on_recompile")

    def check(self) -> None:
        """Refuse to go on after a violation.

        Raises:
            WorkerError: fatal, with the counts; every later call raises too.
        """
        if self._sealed is None:
            return
        if self._is_deaf():
            raise WorkerError(
                Kind.FATAL,
                "check compile contract: want every compile counted, got a compiler that was reset",
                hint="something called torch._dynamo.reset, which forgets who listens",
            )
        if self._sealed == (self.compiles, self.dense_calls):
            return
        compiles, dense = self.compiles - self._sealed[0], self.dense_calls - self._sealed[1]
        raise WorkerError(
            Kind.FATAL,
            f"check compile contract: want no compile and no dense flex attention after warm-up, "
            f"got {compiles} and {dense}",
            hint="a shape, dtype or gradient mode reached this worker that warm-up did not run",
        )

    def _is_deaf(self) -> bool:
        """Whether the compiler is there and does not tell of compiles any more."""
        compiler = sys.modules.get(_COMPILER)
        return (
            compiler is not None
            and self._on_compile not in compiler.callback.callback_handler.start_callbacks
        )

    def _on_compile(self, *_: Any) -> None:
        """Called by dynamo before it traces a frame."""
        self.compiles += 1

    def _wrap(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """The dense implementation, counted and refused."""

        def dense(*_args: Any, **_kwargs: Any) -> Any:
            self.dense_calls += 1
            raise WorkerError(Kind.FATAL, f"call flex attention: it ran dense, call {self.dense_calls}")

        dense.__wrapped__ = inner  # type: ignore[attr-defined]
        return dense


class Calls(Protocol):
    """What attention was called while it was open."""

    def __enter__(self) -> Self:
        """Count from here."""

    def __exit__(self, *_: Any) -> None:
        """Count to here."""

    @property
    def total(self) -> int:
        """How many calls."""

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of what ran, sorted."""

    @property
    def products(self) -> tuple[str, ...]:
        """Names of what multiplied matrices, sorted; none where nothing was named."""


class CompiledCalls:
    """Counts the calls of a compiled attention while it is open, and names the kernels that ran.

    A function mode like `AttentionCalls` would be part of what the compiler guards on, and so make
    graphs that training never meets; names are what the device says that it ran.
    """

    def __init__(self, counter: AttentionCounter, *, device: str, named: bool) -> None:
        """Count from nothing.

        Args:
            counter: of the attention.
            device: type of the device.
            named: whether to record kernels, which costs the device's profiler.
        """
        self.total = 0
        self.kernels: tuple[str, ...] = ()
        self.products: tuple[str, ...] = ()
        self._counter = counter
        activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
        self._profile = profile(activities=[activity], acc_events=True) if named else None

    def __enter__(self) -> Self:
        """Count from here."""
        self._before = self._counter.calls
        if self._profile is not None:
            self._profile.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Count to here."""
        self.total = self._counter.calls - self._before
        if self._profile is not None:
            self._profile.__exit__(kind, error, trace)
            names = {event.key for event in self._profile.key_averages()}
            self.kernels = tuple(sorted(name for name in names if "flex_attention" in name))
            self.products = tuple(sorted({name[:_NAME_LENGTH] for name in names if _multiplies(name)}))


def _multiplies(name: str) -> bool:
    """Whether a kernel's or an operator's name says that it multiplies matrices."""
    small = name.lower()
    return "flex_attention" not in small and any(mark in small for mark in _PRODUCTS)


class AttentionCalls(TorchFunctionMode):
    """Counts the attention kernels called while it is open, by name."""

    def __init__(self) -> None:
        """Count from nothing."""
        super().__init__()
        self.calls: Counter[str] = Counter()
        self._products: set[str] = set()

    @property
    def total(self) -> int:
        """How many calls."""
        return sum(self.calls.values())

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of what was called, sorted."""
        return tuple(sorted(self.calls))

    @property
    def products(self) -> tuple[str, ...]:
        """Names of the products that were called, sorted."""
        return tuple(sorted(self._products))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Let everything through, counted where it is attention."""
        if func is F.scaled_dot_product_attention or getattr(func, "__name__", "") == "flex_attention":
            self.calls[func.__name__] += 1
        if getattr(func, "__name__", "") in _FUNCTIONS:
            self._products.add(func.__name__)
        return func(*args, **(kwargs or {}))


def graphs() -> int:
    """Graphs that this process has compiled so far.

    Source: `torch._dynamo.utils.counters`, which counts from the compiler's import on.
    """
    if _COMPILER not in sys.modules:
        return 0
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def cache_counts() -> tuple[int, int]:
    """Hits and misses of the compiler's cache so far.

    A graph that could not be read back or be cached is a miss: its kernels were made anew. Whether the
    cheaper cache before it, of joint graphs, knew the graph decides seconds and no kernels.

    Source: `torch._dynamo.utils.counters`.
    """
    if _COMPILER not in sys.modules:
        return 0, 0
    from torch._dynamo.utils import counters

    inductor = counters["inductor"]
    misses = inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"]
    return int(inductor["fxgraph_cache_hit"]), int(misses)


def when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call `then` with a module: now where it is imported, else when its import ends.

    Args:
        name: the module's whole name.
        then: called once, on the importing thread, before the import statement returns.
    """
    module = sys.modules.get(name)
    if module is not None:
        then(module)
    else:
        sys.meta_path.insert(0, _Finder(name, then))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as everybody else would, and is told when it was executed."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec with a loader that calls back; None for any other module."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute, then = spec.loader.exec_module, self._then

        def execute_and_tell(module: ModuleType) -> None:
            execute(module)
            then(module)

        spec.loader.exec_module = execute_and_tell  # type: ignore[method-assign]
        return spec
