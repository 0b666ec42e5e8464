"""Whether another value of one key trains as well: loss and acceptance of some seeds, beside the first's.

`python curves.py BINARY -- -f configs/gpu-1.yaml --set training.steps=200`: for each seed a run of `up` for
each value of a key, all else equal, in runs of this directory; the key is drafter.precision with fp8 beside
the compute dtype unless `--key K --values A B` names another. Target and answers are made once, in the first
runs, and kept in the cache: the answers of other seeds, too, are those of the first (data.regenerate.seed).

`--side-by-side K` runs K at once, on the same devices: first those of the first seed, which fill the cache,
then all others, K at a time. Quality does not depend on time; times mean nothing then, and are left out.

Reads losses from the runs' events and the rest from their summaries. Prints a line a run to stderr and one
JSON object to stdout, which names what there was no time for and what failed. Needs no torch.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

PRECISION = "drafter.precision"
PRECISIONS = ("compute_dtype", "fp8")
POINTS = 20  # of a curve
_TOLD = ("heldout_loss", "acceptance_before", "acceptance_after", "acceptance_nonlooping", "lossless", "exit")
_COMPARED = ("heldout_loss", "acceptance_after", "last_loss", "acceptance_per_device_hour")
_TIMES = ("run_s", "train_s", "acceptance_per_device_hour")


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

    `acceptance_per_device_hour` is what training added to the acceptance length, by the hours that it held
    the workers' devices; None where a part of it is not known.

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
    hours = len({worker["device"] for worker in summary["workers"]}) * sum(train) / 3600
    before, after = summary["acceptance_before"], summary["acceptance_after"]
    known = hours > 0 and before is not None and after is not None
    return {
        **{name: summary[name] for name in _TOLD},
        "steps": summary["steps"],
        "certified": certificate.get("precision"),
        "fp8_products": certificate.get("fp8_products", 0),
        "train_s": train[0] if train else None,
        "acceptance_per_device_hour": (after - before) / hours if known else None,
        "losses": curve(losses(directory / "events.jsonl")),
    }


def compared(runs: Sequence[dict[str, Any]], *, values: Sequence[str]) -> dict[str, Any]:
    """All values beside the first, seed by seed: how much more each came to, with the spread over seeds.

    Args:
        runs: each with its seed and value, and what `told` gives.
        values: of the key; the others are compared with the first.
    """
    by = {(run["seed"], run["value"]): run for run in runs}
    seeds = sorted({seed for seed, _ in by if all((seed, value) in by for value in values)})
    first, *others = values
    found: dict[str, Any] = {"seeds": seeds, "beside": first}
    for name in _COMPARED:
        of = {value: [_figure(by[seed, value], name) for seed in seeds] for value in values}
        if not seeds or any(one is None for figures in of.values() for one in figures):
            found[name] = None
            continue
        more = {
            value: [one - other for one, other in zip(of[value], of[first], strict=True)] for value in others
        }
        found[name] = {
            "mean": {value: round(mean(figures), 5) for value, figures in of.items()},
            "more": {value: round(mean(figures), 5) for value, figures in more.items()},
            "by_seed": {value: [round(one, 5) for one in figures] for value, figures in more.items()},
            "spread_of_seeds": round(stdev(of[first]), 5) if len(seeds) > 1 else None,
        }
    return found


def _figure(run: dict[str, Any], name: str) -> float | None:
    if name == "last_loss":
        return run["losses"][-1][1] if run["losses"] else None
    return run[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One value of the key with one seed."""

    key: str
    value: str
    seed: int

    @property
    def name(self) -> str:
        """Of its directory, and of its log."""
        parts = ("curves", *(() if self.key == PRECISION else (self.key.split(".")[-1],)), self.value)
        return "-".join((*(re.sub("[^A-Za-z0-9.]+", "-", part) for part in parts), str(self.seed)))

    def command(self, binary: str, arguments: Sequence[str], *, answers: int, shared: bool) -> list[str]:
        """Of `up`.

        Args:
            binary: dflash-runner.
            arguments: the caller's.
            answers: the seed that samples and prompts are made with.
            shared: whether other runs are on the same devices.
        """
        set_ = [f"run.seed={self.seed}", f"{self.key}={self.value}", f"data.regenerate.seed={answers}"]
        set_ += ["workers.busy_devices=allow"] if shared else []
        mine = [word for path in set_ for word in ("--set", path)]
        return [binary, "up", *arguments, "--plain", "--name", self.name, *mine]


def groups(runs: Sequence[Run], *, at_once: int) -> Iterator[tuple[Run, ...]]:
    """Those that run side by side, seed by seed; the first seed's begin alone, as they make what the others
    find in the cache."""
    first = sum(run.seed == runs[0].seed for run in runs)
    for part in (runs[:first], runs[first:]):
        for low in range(0, len(part), at_once):
            yield tuple(part[low : low + at_once])


@dataclass(kw_only=True, slots=True)
class Trainings:
    """Runs of `up`, and what came of them."""

    binary: str
    arguments: Sequence[str]
    answers: int  # the seed of them
    logs: Path
    runs: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)

    def train(self, group: Sequence[Run]) -> float:
        """The seconds that some runs took side by side; those that fail are kept as such."""
        start, shared = time.monotonic(), len(group) > 1
        with ExitStack() as stack:
            started = [(run, self._start(run, stack, shared=shared)) for run in group]
            for run, process in started:
                process.wait()
                self._read(run, process.returncode, shared=shared, seconds=time.monotonic() - start)
        return time.monotonic() - start

    def _start(self, run: Run, stack: ExitStack, *, shared: bool) -> subprocess.Popen[bytes]:
        """Begun; ended where this process is interrupted before it is over."""
        log = stack.enter_context((self.logs / f"{run.name}.log").open("a"))
        command = run.command(self.binary, self.arguments, answers=self.answers, shared=shared)
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        stack.callback(process.wait)
        stack.callback(process.terminate)  # nothing, once it is waited for
        return process

    def _read(self, run: Run, code: int, *, shared: bool, seconds: float) -> None:
        asked = {"seed": run.seed, "value": run.value}
        try:
            if code != 0:
                raise RuntimeError(f"want exit code 0, got {code}: see {self.logs / run.name}.log")
            found = {"run_s": round(seconds, 1), **told(Path("runs") / run.name)}
            if run.key == PRECISION and found["certified"] != run.value:
                raise RuntimeError(f"want a certificate of {run.value}, got {found['certified']}")
        except RuntimeError as error:
            self.failed.append({**asked, "why": f"run {run.name}: {error}"})
            sys.stderr.write(json.dumps(self.failed[-1]) + "\n")
            return
        if shared:
            found |= dict.fromkeys(_TIMES)
        self.runs.append({**asked, **found})
        sys.stderr.write(json.dumps({k: v for k, v in self.runs[-1].items() if k != "losses"}) + "\n")


def asked() -> argparse.Namespace:
    """What the command line says; wrong ones end the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--key", default=PRECISION, help="of the configuration")
    parser.add_argument(
        "--values", nargs="+", default=list(PRECISIONS), help="of it; the first is the measure"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--side-by-side", type=int, default=1, metavar="K", help="runs at once; no times then"
    )
    parser.add_argument("--seconds", type=float, default=570.0, help="no run begins that may end later")
    parser.add_argument("--logs", type=Path, default=Path(), help="directory of what the runs print")
    parser.add_argument("arguments", nargs="+", help="of up, after --")
    found = parser.parse_args()
    if found.key != PRECISION and found.values == list(PRECISIONS):
        parser.error("--values: want those of --key")
    if found.side_by_side < 1:
        parser.error(f"--side-by-side: want at least 1, got {found.side_by_side}")
    runs = [Run(key=found.key, value=value, seed=seed) for seed in found.seeds for value in found.values]
    if len({run.name for run in runs}) < len(runs):
        parser.error(f"--values, --seeds: want different ones, got {found.values}, {found.seeds}")
    found.runs = runs
    return found


def main() -> None:
    """Train, compare, and print; exit 1 where a run failed."""
    of = asked()
    trainings = Trainings(binary=of.binary, arguments=of.arguments, answers=of.seeds[0], logs=of.logs)
    began, took, left = time.monotonic(), [], []
    for group in groups(of.runs, at_once=of.side_by_side):
        longest = max(took[1:] or took, default=0.0)  # the first makes the target
        if time.monotonic() - began + longest > of.seconds:
            left += [[run.seed, run.value] for run in group]
            continue
        took.append(trainings.train(group))
    out = {"bench": "curves", "arguments": of.arguments, "key": of.key, "values": of.values}
    out |= {"side_by_side": of.side_by_side, "runs": trainings.runs, "left_out": left}
    out |= {"failed": trainings.failed, "compared": compared(trainings.runs, values=of.values)}
    sys.stdout.write(json.dumps(out) + "\n")
    if trainings.failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
