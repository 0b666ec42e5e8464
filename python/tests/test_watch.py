"""The watch counts and refuses, although the compiler is not imported for it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parents[1]


def run(code: str) -> str:
    """Standard output of a fresh interpreter that runs `code`."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(PYTHON)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_compiler_is_not_imported_and_nothing_is_counted():
    out = run("""
        import sys
        from dflash_runner.watch import Watch, cache_counts, graphs
        watch = Watch()
        watch.seal()
        watch.check()
        print("torch._dynamo" in sys.modules, graphs(), cache_counts(), watch.compiles)
    """)
    assert out == "False 0 (0, 0) 0"


def test_a_compile_before_the_seal_is_counted_though_the_compiler_came_later():
    out = run("""
        import torch
        from dflash_runner.watch import Watch, graphs
        watch = Watch()
        torch.compile(lambda a: a + 1, backend="eager")(torch.ones(2))
        print(watch.compiles, graphs())
    """)
    assert out == "1 1"


@pytest.mark.parametrize("before", ["", "import torch._dynamo"], ids=["compiler later", "compiler first"])
def test_a_compile_after_the_seal_is_refused(before):
    out = run(f"""
        {before}
        import torch
        from dflash_runner.watch import Watch
        watch = Watch()
        watch.seal()
        try:
            torch.compile(lambda a: a + 1, backend="eager")(torch.ones(2))
        except RuntimeError as err:
            print("recompile" in str(err))
    """)
    assert out == "True"


def test_dense_flex_attention_is_refused_and_stays_on_record():
    out = run("""
        import torch
        from torch.nn.attention.flex_attention import flex_attention
        from dflash_runner.errors import WorkerError
        from dflash_runner.watch import Watch
        watch = Watch()
        q = torch.randn(1, 1, 16, 16)
        refused = 0
        try:
            flex_attention(q, q, q)
        except Exception as err:
            refused = int("it ran dense" in str(err))
        dense = watch.dense_calls
        watch.seal()
        watch.check()
        try:
            import importlib
            importlib.import_module("torch._higher_order_ops.flex_attention")._math_attention_inner()
        except WorkerError:
            refused += 1
        try:
            watch.check()
        except WorkerError as err:
            print(refused, dense, err.kind.label, watch.dense_calls)
    """)
    assert out == "2 1 fatal 2"
