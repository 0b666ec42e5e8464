"""How a measuring script is asked and answers: one JSON argument, one JSON line, an error as one too."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any, TextIO

from dflash_runner.errors import describe


def answer(measure: Callable[[dict[str, Any]], dict[str, Any]], *, out: TextIO | None = None) -> None:
    """Print what `measure` makes of the argument; of an exception its kind, message and hint, and end with 1.

    The traceback goes to stderr, for whoever runs a script by hand.

    Args:
        measure: takes the question, gives the answer.
        out: where to print; None: stdout.
    """
    out = out or sys.stdout
    try:
        found = measure(json.loads(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 the edge: whatever it is, it is told
        told = describe(error)
        traceback.print_exc()
        failed = {"kind": told.kind.label, "message": told.message, "hint": told.hint}
        out.write(json.dumps({"error": failed}) + "\n")
        out.flush()
        sys.exit(1)
    out.write(json.dumps(found) + "\n")
    out.flush()
