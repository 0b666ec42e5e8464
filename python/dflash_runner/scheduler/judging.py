"""What the host finds wrong with an answer, in its words: None where nothing is.

Source: plugins/scheduler/host/answers.go and schema.go, which decide; proto/golden/judgements.json holds
both to the same words.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_runner.scheduler.errors import Error, Kind
from dflash_runner.scheduler.requests import (
    ArrangeRequest,
    AssignRequest,
    Decision,
    FailureRequest,
    PlaceRequest,
    Verdict,
    Worker,
)
from dflash_runner.scheduler.schema import Field, Type

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_KEY = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MAX_FIELDS = 256
_MAX_REASON_BYTES = 500
_CPU = "cpu"  # the device that is no GPU
_PHRASES = {
    Type.TEXT: "a text",
    Type.INT: "a whole number",
    Type.NUMBER: "a number",
    Type.BOOL: "true or false",
    Type.TEXTS: "a list of texts",
}


def arrange(request: ArrangeRequest, samples: Sequence[int]) -> str | None:
    """As many as were asked for, each at most as often as it stands in the pool."""
    want = min(request.count, len(request.pool))
    if len(samples) != want:
        return f"want {want} samples, got {len(samples)}"
    left = Counter(request.pool.sample_P)
    given = set()
    for place, sample in enumerate(samples):
        if left[sample] <= 0:
            return f"place {place}: sample {sample} " + (
                "stands there again" if sample in given else "is not in the pool"
            )
        left[sample] -= 1
        given.add(sample)
    return None


def assign(request: AssignRequest, target: Worker) -> str | None:
    """One of the free."""
    if target not in request.free:
        return f"row {request.row}: want one of {_names(request.free)}, got {_stranger(target)}"
    return None


def place(request: PlaceRequest, placements: Mapping[Worker, str]) -> str | None:
    """Every worker on a device that is there and works, within its memory, and alone unless they share.

    Two drafters never share a GPU.
    """
    devices = {d.id: d for d in request.devices}
    needs = {n.worker: n for n in request.needs}
    if len(placements) != len(needs):
        return f"want {len(needs)} placements, got {len(placements)}"
    taken: dict[str, int] = {}
    drafters: dict[str, Worker] = {}
    for worker, at in placements.items():
        device = devices.get(at)
        if worker not in needs:
            return f"worker {_stranger(worker)} is not of this run"
        if device is None:
            return f"{_name(worker)}: unknown device {_quoted(at)}"
        if device.health == "critical":
            return f"{_name(worker)}: device {at} does not work"
        if at in taken and not request.colocate:
            return f"{_name(worker)}: device {at} has a worker, and they do not share"
        if worker.role == "drafter" and at in drafters and at != _CPU:
            why = "two drafters of one GPU cannot sum their gradients"
            return f"{_name(worker)}: GPU {at} has {_name(drafters[at])}, and {why}"
        left, want = device.free_bytes - taken.get(at, 0), needs[worker].memory_bytes
        if want > left:
            return f"{_name(worker)}: device {at}: want {want} bytes, got {left} of {device.free_bytes} left"
        taken[at] = taken.get(at, 0) + want
        if worker.role == "drafter":
            drafters[at] = worker
    return None


def on_failure(request: FailureRequest, verdict: Verdict) -> str | None:
    """A reason of one line, and a replacement that goes to another device, which works."""
    size = len(verdict.reason.encode())
    if size > _MAX_REASON_BYTES or any(unicodedata.category(c) == "Cc" for c in verdict.reason):
        want = f"want a reason of one line and at most {_MAX_REASON_BYTES} bytes"
        return f"{want}, got {size} bytes: {_quoted(verdict.reason)}"
    if verdict.decision is not Decision.REPLACE:
        return None
    good = {d.id for d in request.devices if d.health != "critical"} - {request.device}
    if verdict.device not in good:
        worker = _name(request.worker)
        return f"replace {worker}: want another device that works, got {_quoted(verdict.device)}"
    return None


def schema(fields: Sequence[Field]) -> str | None:
    """A schema that makes sense."""
    if len(fields) > _MAX_FIELDS:
        return f"want at most {_MAX_FIELDS} keys, got {len(fields)}"
    seen = set()
    for field in fields:
        if not _KEY.fullmatch(field.key):
            return f"key: want a-z, 0-9 and '_', got {_quoted(field.key)}"
        if field.key in seen:
            return f"key {field.key}: it stands there twice"
        if not field.required and (wrong := value(field, field.value)):
            return f"default of {wrong}"
        seen.add(field.key)
    return None


def value(field: Field, given: Any) -> str | None:
    """A key's value: of its type, and within its bounds or set."""
    if field.type is Type.TEXTS and isinstance(given, list | tuple):
        for i, entry in enumerate(given):
            if not isinstance(entry, str):
                return f"{field.key}[{i}]: want a text, got {_plain(entry)}"
    if not field.type.holds(given):
        return f"{field.key}: want {_PHRASES[field.type]}, got {_plain(given)}"
    if field.one_of and field.type is Type.TEXT and given not in field.one_of:
        return f"{field.key}: want {' or '.join(field.one_of)}, got {_quoted(given)}"
    if field.type in (Type.INT, Type.NUMBER):
        if field.min is not None and given < field.min:
            return f"{field.key}: want at least {field.min:g}, got {given:g}"
        if field.max is not None and given > field.max:
            return f"{field.key}: want at most {field.max:g}, got {given:g}"
    return None


def filled(fields: Sequence[Field], values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with every key of the schema, as the host hands it over.

    Args:
        fields: the schema.
        values: what a person wrote.

    Raises:
        Error: INVALID, keys are unknown or lack, or values are refused: all that are.
    """
    known = {field.key for field in fields}
    keys = f"the plugin's keys: {', '.join(sorted(known))}"
    wrong = [(f"{key}: unknown key", keys) for key in sorted(set(values) - known)]
    whole = {}
    for field in fields:
        if field.required and field.key not in values:
            wrong.append((f"{field.key}: want {_PHRASES[field.type]}, got nothing", field.doc))
            continue
        given = values.get(field.key, field.value if not field.required else None)
        if refused := value(field, given):
            wrong.append((refused, field.doc))
            continue
        whole[field.key] = float(given) if field.type is Type.NUMBER else given
    if wrong:
        hints = dict.fromkeys(hint for _, hint in wrong if hint)  # each once
        raise Error(Kind.INVALID, "; ".join(message for message, _ in wrong), hint="; ".join(hints))
    return whole


def _name(worker: Worker) -> str:
    return f"{worker.role}/{worker.rank}"


def _names(workers: Sequence[Worker]) -> str:
    return "[" + " ".join(_name(worker) for worker in workers) + "]"


def _stranger(worker: Worker) -> str:
    """A worker whose role may be anything."""
    return f"{_quoted(worker.role, 40)}/{worker.rank}"


def _quoted(text: str, limit: int = 80) -> str:
    """The first characters of a text as the host quotes it."""
    return json.dumps(text[:limit], ensure_ascii=False)


def _plain(value: Any) -> str:
    """A value of a configuration as the host prints it."""
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
    return str(value)[:80]
