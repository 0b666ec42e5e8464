"""The operations of a drafter as kernels: each of `operations` compiled once, for the shapes of warm-up."""

from __future__ import annotations

from dflash_runner import operations
from dflash_runner.compiled import Backend, Compiled
from dflash_runner.operations import Operations

_SCORE_BYTES = 1 << 30
"""Most bytes of one chunk's logits in bfloat16; its gradient by the logits is as large."""


def kernels(*, backend: Backend = "inductor") -> Operations:
    """Compiled operations; nothing is compiled before it is called.

    Matrix products stay torch's own, at the speed of its library: compiling them along costs many seconds
    of warm-up and gains nothing.

    Args:
        backend: of the compiler; another than torch's own in tests.

    Raises:
        WorkerError: fatal, where the environment switches the compiler off.
    """
    return Operations(
        norm=Compiled(operations.norm, what="norm", backend=backend),
        add_norm=Compiled(operations.add_norm, what="sum and norm", backend=backend),
        gate=Compiled(operations.gate, what="gate", backend=backend),
        heads=Compiled(operations.heads, what="heads", backend=backend),
        context_norm=Compiled(operations.norm, what="norm of context", backend=backend),
        context_heads=Compiled(operations.heads, what="heads of context", backend=backend),
        score=Compiled(operations.score, what="loss", backend=backend),
        score_bytes=_SCORE_BYTES,
        logit_bytes=2,
    )
