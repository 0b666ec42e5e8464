"""What was made from what: fingerprints, and the facts kept beside what a job made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from dflash_runner import host
from dflash_runner.tensorfile import FileError

__all__ = ["fingerprint", "read_facts", "write_facts"]

_PACKAGES = ("torch", "transformers", "tokenizers")


def fingerprint(job: Message, *, leave_out: Sequence[str], **inputs: str | int) -> str:
    """SHA-256, in hex, over a job's settings, its other inputs and the packages that shape the result.

    A GPU's results are its own, so the device counts where it is not the CPU, with its kind.

    Args:
        job: the settings; every field counts, also those that are 0, but for an empty device.
        leave_out: fields that do not shape the result, or that `inputs` stands for.
        inputs: digests, versions, threads.

    Source: README, Files of a run (what a job made is cached by its fingerprint).
    """
    settings = json_format.MessageToDict(
        job, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    if settings.get("device") in ("", "cpu"):
        del settings["device"]
    elif "device" in settings:
        inputs |= {"gpu": next((gpu.name for gpu in host.gpus()), "")}
    facts = {
        "job": job.DESCRIPTOR.full_name,
        "settings": {k: v for k, v in settings.items() if k not in leave_out},
        "inputs": inputs,
        "packages": {name: version(name) for name in _PACKAGES},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def read_facts(path: Path, *, fingerprint: str) -> Mapping[str, Any] | None:
    """The facts of an earlier, equal job, or None when its directory is not there.

    Raises:
        FileError: the directory holds something else.

    Source: README, Files of a run (what a job made is cached by its fingerprint).
    """
    if not path.parent.exists() or (path.parent.is_dir() and not any(path.parent.iterdir())):
        return None
    hint = f"remove {path.parent}, or choose another directory"
    try:
        facts = json.loads(path.read_bytes())
    except (OSError, ValueError) as err:
        raise FileError(f"read {path}: {err}", hint=hint) from err
    got = facts.get("fingerprint") if isinstance(facts, dict) else None
    if got != fingerprint:
        raise FileError(f"read {path}: want fingerprint {fingerprint}, got {got}", hint=hint)
    return facts


def write_facts(path: Path, facts: Mapping[str, Any]) -> None:
    """Writes facts as JSON that people can read; equal facts give equal bytes."""
    path.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
