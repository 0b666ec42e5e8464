"""Functions that run compiled or not at all: nothing else calls `torch.compile`.

A function is compiled whole (`fullgraph`: a graph break or a ninth set of guards raises, where plain
`torch.compile` would run uncompiled for ever) and with static shapes, one entry a bucket, for one thread.

On threads: a function is entered on the thread that made it and is refused on every other. Its backward
is lowered when it first runs, on autograd's own thread where there is a GPU, so warm-up runs every
backward, and one that is lowered later is counted by the compile-start callback, whose list is one for
the process, and fails its order. Nothing here assigns compiler settings, which from torch 2.12 on hold
for the assigning thread alone: `fullgraph` and `dynamic` are arguments of the function, the stance and
the dense tripwire of `watch` are the process's, and the rest is the environment's, which is read at
import and so the same on every thread.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch._dynamo.exc import FailOnRecompileLimitHit

from dflash_runner.errors import Kind, WorkerError

Backend = str | Callable[..., Any]
"""Of the compiler: torch's own by name, or another in tests."""

_OPTIONS = {"triton.autotune_pointwise": False}
"""Of torch's own compiler: one choice of sizes for a kernel in place of a measured one of several. That takes
an eighth from a cold first pass, and no step was slower for it."""


class Compiled:
    """One compiled function; called as the plain one is."""

    def __init__(self, function: Callable[..., Any], *, what: str, backend: Backend = "inductor") -> None:
        """Make it; nothing is compiled before it is called.

        Compiled code is kept by code object, eight entries at most. The function gets a code object of its
        own here, so that no other user of it can take an entry.

        Args:
            function: pure; a `def`, no closure.
            what: it computes, for messages.
            backend: of the compiler.

        Raises:
            WorkerError: fatal, where the environment switches the compiler off.
        """
        code = function.__code__.replace(co_name=f"{function.__name__}_of_{what.replace(' ', '_')}")
        own = types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__)
        options = dict(_OPTIONS) if backend == "inductor" else None
        compiled = torch.compile(own, fullgraph=True, dynamic=False, backend=backend, options=options)
        if not hasattr(compiled, "_torchdynamo_orig_callable") or torch._dynamo.config.disable:  # noqa: SLF001
            raise WorkerError(
                Kind.FATAL,
                f"make compiled {what}: want a compiler, got one that is switched off",
                hint="unset TORCH_COMPILE_DISABLE and TORCHDYNAMO_DISABLE",
            )
        self._compiled = compiled
        self._what = what
        self._thread = threading.get_ident()
        self._refused = ""  # the first violation; it sticks

    def __call__(self, *args: Any) -> Any:
        """The compiled function; whatever it is not made for is refused, now and ever after.

        Raises:
            WorkerError: fatal, on another thread, after a refusal, or where the compiler refuses: a graph
                break, too many shapes, or a compile after the seal.
        """
        self.check()
        try:
            return self._compiled(*args)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, FailOnRecompileLimitHit) as err:
            self.refuse(f"{type(err).__name__}: {err}", cause=err)

    def check(self) -> None:
        """Refuse what would race with a compile, and everything after a refusal.

        Raises:
            WorkerError: fatal.
        """
        if self._refused:
            raise self._error(f"refused before: {self._refused}")
        if threading.get_ident() != self._thread:
            self.refuse(f"want the thread that made it, got thread {threading.current_thread().name!r}")

    def refuse(self, why: str, *, cause: BaseException | None = None) -> NoReturn:
        """Put a violation on record, for ever.

        Raises:
            WorkerError: fatal, always.
        """
        self._refused = why
        raise self._error(why) from cause

    def _error(self, why: str) -> WorkerError:
        return WorkerError(
            Kind.FATAL,
            f"call compiled {self._what}: {why}",
            hint="a shape, dtype, gradient mode or thread that warm-up did not run",
        )
