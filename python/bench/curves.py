"""Whether products in fp8 train as well: loss and acceptance of some seeds, beside the compute dtype's.

`python curves.py BINARY -- -f configs/gpu-1.yaml --set training.steps=200`: for each seed a run of `up` for
each value of drafter.precision, all else equal, in runs of this directory; target and answers are made once
and kept in the cache. Reads losses from the runs' events and the rest from their summaries. Prints a line a
run to stderr and one JSON object to stdout, which names what there was no time for. Needs no torch.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

PRECISIONS = ("compute_dtype", "fp8")
POINTS = 20  # of a curve
_TOLD = ("heldout_loss", "acceptance_before", "acceptance_after", "acceptance_nonlooping", "lossless", "exit")


def curve(losses: Sequence[float], *, points: int = POINTS) -> list[list[float]]:
    """[last step, mean loss] of neighbouring stretches of steps; the first step is 1.

    A loss that is no number makes its stretch None.
    """
    size = max(1, math.ceil(len(losses) / points))
    stretches = [losses[low : low + size] for low in range(0, len(losses), size)]
    told, last = [], 0
    for stretch in stretches:
        last += len(stretch)
        found = mean(stretch)
        told.append([last, round(found, 5) if math.isfinite(found) else None])
    return told


def losses(events: Path) -> list[float]:
    """Of the decided steps, in order; what was no number is NaN."""
    found: dict[int, float] = {}
    for line in events.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "step decided":
            loss = event["figures"].get("loss")
            found[event["step"]] = math.nan if loss is None else loss
    return [found[step] for step in sorted(found)]


def told(directory: Path) -> dict[str, Any]:
    """What a run that is over came to.

    Raises:
        RuntimeError: it has no summary.
    """
    path = directory / "summary.json"
    if not path.exists():
        raise RuntimeError(f"read {path}: want the summary of a run that ended, got none")
    summary = json.loads(path.read_text())
    drafters = [worker for worker in summary["workers"] if worker["role"] == "drafter"]
    certificate = drafters[0]["certificate"] or {} if drafters else {}
    train = [stage["seconds"] for stage in summary["stages"] if stage["name"] == "train"]
    return {
        **{name: summary[name] for name in _TOLD},
        "steps": summary["steps"],
        "certified": certificate.get("precision"),
        "fp8_products": certificate.get("fp8_products", 0),
        "train_s": train[0] if train else None,
        "losses": curve(losses(directory / "events.jsonl")),
    }


def compared(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Both precisions beside each other, seed by seed: fp8 less the other, with the spread over seeds."""
    by = {(run["seed"], run["precision"]): run for run in runs}
    seeds = sorted({seed for seed, _ in by if all((seed, precision) in by for precision in PRECISIONS)})
    found: dict[str, Any] = {"seeds": seeds}
    for name in ("heldout_loss", "acceptance_after", "last_loss"):
        values = {
            precision: [_figure(by[seed, precision], name) for seed in seeds] for precision in PRECISIONS
        }
        pairs = list(zip(values["fp8"], values["compute_dtype"], strict=True))
        if not pairs or any(one is None or other is None for one, other in pairs):
            found[name] = None
            continue
        more = [one - other for one, other in pairs]
        found[name] = {
            **{precision: round(mean(values[precision]), 5) for precision in PRECISIONS},
            "fp8_more": round(mean(more), 5),
            "by_seed": [round(one, 5) for one in more],
            "spread_of_seeds": round(stdev(values["compute_dtype"]), 5) if len(seeds) > 1 else None,
        }
    return found


def _figure(run: dict[str, Any], name: str) -> float | None:
    if name == "last_loss":
        return run["losses"][-1][1] if run["losses"] else None
    return run[name]


def train(binary: str, arguments: Sequence[str], *, seed: int, precision: str, log: Path) -> dict[str, Any]:
    """A run, and what it came to.

    Raises:
        RuntimeError: it failed.
    """
    name = f"curves-{precision.replace('_', '-')}-{seed}"
    command = [binary, "up", *arguments, "--plain", "--name", name]
    command += ["--set", f"run.seed={seed}", "--set", f"drafter.precision={precision}"]
    start = time.monotonic()
    with log.open("a") as output:
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    if code != 0:
        raise RuntimeError(f"run {name}: want exit code 0, got {code}: see {log}")
    found = told(Path("runs") / name)
    if found["certified"] != precision:
        raise RuntimeError(f"run {name}: want a certificate of {precision}, got {found['certified']}")
    return {"seed": seed, "precision": precision, "run_s": round(time.monotonic() - start, 1), **found}


def main() -> None:
    """Train, compare, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, default=570.0, help="no run begins that may end later")
    parser.add_argument("--log", type=Path, default=Path("curves.log"))
    parser.add_argument("arguments", nargs="+", help="of up, after --")
    asked = parser.parse_args()
    began, runs, left = time.monotonic(), [], []
    for seed, precision in ((seed, precision) for seed in asked.seeds for precision in PRECISIONS):
        longest = max((run["run_s"] for run in runs[1:] or runs), default=0.0)  # the first makes the target
        if time.monotonic() - began + longest > asked.seconds:
            left.append([seed, precision])
            continue
        runs.append(train(asked.binary, asked.arguments, seed=seed, precision=precision, log=asked.log))
        sys.stderr.write(json.dumps({k: v for k, v in runs[-1].items() if k != "losses"}) + "\n")
    out = {"bench": "curves", "arguments": asked.arguments, "runs": runs, "left_out": left}
    sys.stdout.write(json.dumps({**out, "compared": compared(runs)}) + "\n")


if __name__ == "__main__":
    main()
