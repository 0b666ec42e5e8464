"""A function that is compiled whole, called on one thread, and refused for ever after an error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch._dynamo.exc import FailOnRecompileLimitHit

from dflash_runner.errors import Kind, WorkerError


class Compiled:
    """A compiled function: full graph, static shapes."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        what: str,
        backend: str | Callable[..., Any] = "inductor",
    ) -> None:
        """Make it; nothing is compiled before it is called.

        Args:
            function: a `def` of its own, as compiled code is kept by code object.
            what: its name in errors.
            backend: of the compiler.

        Raises:
            WorkerError: fatal, where the environment switches the compiler off.
        """
        compiled = torch.compile(function, fullgraph=True, dynamic=False, backend=backend)
        if not hasattr(compiled, "_torchdynamo_orig_callable") or torch._dynamo.config.disable:  # noqa: SLF001
            raise WorkerError(
                Kind.FATAL,
                f"make compiled {what}: want a compiler, got one that is switched off",
                hint="unset TORCH_COMPILE_DISABLE and TORCHDYNAMO_DISABLE",
            )
        self._compiled, self._what = compiled, what
        self._thread = threading.get_ident()
        self._refused = ""  # the first violation; it sticks

    def __call__(self, *args: Any) -> Any:
        """What the function gives.

        Raises:
            WorkerError: fatal, on another thread, after a refusal, or where the compiler refuses.
        """
        if self._refused:
            raise self._error(f"refused before: {self._refused}")
        if threading.get_ident() != self._thread:
            name = threading.current_thread().name
            self._refuse(f"want the thread that made it, got thread {name!r}")
        try:
            return self._compiled(*args)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, FailOnRecompileLimitHit) as err:
            self._refuse(f"{type(err).__name__}: {err}", cause=err)

    def _refuse(self, why: str, *, cause: BaseException | None = None) -> NoReturn:
        self._refused = why
        raise self._error(why) from cause

    def _error(self, why: str) -> WorkerError:
        return WorkerError(
            Kind.FATAL,
            f"call compiled {self._what}: {why}",
            hint="a shape, dtype, gradient mode or thread that warm-up did not run",
        )
