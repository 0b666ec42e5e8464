"""What a worker's death costs a run: from the kill to its report, to the next settled step, and who survived.

`python deaths.py BINARY --kill drafter/1@20 --kill drafters@30 --kill target/0@40 -- up -f FILE --name NAME`:
starts that run here, kills each worker (`drafters`: all of them at once) with SIGKILL in the middle of the
step after the given one is decided, and reads times and steps from the run's events. Prints a table to
stderr and one JSON object to stdout. Needs no torch.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

_PATIENCE_S = 500.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """Whom, and after which decided step."""

    worker: str
    step: int

    @staticmethod
    def of(text: str) -> Kill:
        """From `drafter/1@20` or `drafters@20`."""
        worker, _, step = text.partition("@")
        return Kill(worker=worker, step=int(step))

    def struck(self, names: Iterable[str]) -> list[str]:
        """Those of the workers that it kills."""
        return [name for name in names if name == self.worker or f"{name.split('/')[0]}s" == self.worker]


def seconds(event: dict[str, Any]) -> float:
    """When an event was, as the clock of `time.time` says."""
    stamp = event["at"].rstrip("Z")[:26]
    return datetime.fromisoformat(stamp + "+00:00").timestamp()


class Run:
    """A run that is going on in this directory."""

    def __init__(self, binary: str, arguments: list[str], name: str, log: Path) -> None:
        """Start it.

        Args:
            binary: of dflash-runner.
            arguments: of it, `up` first.
            name: of the run.
            log: that its output goes to.
        """
        self._binary, self._name, self.directory = binary, name, Path("runs") / name
        self._output = log.open("w")
        self.process = subprocess.Popen([binary, *arguments], stdout=self._output, stderr=subprocess.STDOUT)
        self._late = time.monotonic() + _PATIENCE_S

    def events(self) -> Iterator[dict[str, Any]]:
        """All of them, whole lines alone."""
        path = self.directory / "events.jsonl"
        if path.exists():
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    yield json.loads(line)

    def until_decided(self, step: int) -> float:
        """Waits for a step to be decided; gives the mean seconds between the last decided ones.

        Raises:
            RuntimeError: the run ended before, or takes too long.
        """
        while True:
            times = [seconds(e) for e in self.events() if e["event"] == "step decided" and e["step"] <= step]
            last = max((e["step"] for e in self.events() if e["event"] == "step decided"), default=0)
            if last >= step:
                recent = times[-5:]
                return (recent[-1] - recent[0]) / max(1, len(recent) - 1)
            if self.process.poll() is not None or time.monotonic() > self._late:
                raise RuntimeError(f"step {step} was not decided: exit {self.process.returncode}")
            time.sleep(0.01)

    def workers(self) -> dict[str, dict[str, Any]]:
        """Each worker's status by name."""
        told = subprocess.run(
            [self._binary, "status", self._name, "--json"], stdout=subprocess.PIPE, check=True
        )
        return {worker["name"]: worker for worker in json.loads(told.stdout)["workers"]}

    def end(self) -> int:
        """Waits for its end; gives the exit code."""
        code = self.process.wait(timeout=max(1.0, self._late - time.monotonic()))
        self._output.close()
        return code


def strike(run: Run, kill: Kill) -> dict[str, Any]:
    """Kill in the middle of a step; what was seen at once.

    Raises:
        ValueError: there is no such worker.
    """
    spacing = run.until_decided(kill.step)
    before = run.workers()
    workers = kill.struck(before)
    if not workers:
        raise ValueError(f"kill {kill.worker}: want one of {sorted(before)}, or `drafters`")
    time.sleep(spacing * 0.4)
    at = time.time()
    for name in workers:
        os.kill(before[name]["pid"], signal.SIGKILL)
    pids = {name: worker["pid"] for name, worker in before.items()}
    return {"kill": kill, "workers": workers, "at": at, "pids": pids}


def recovered(run: Run, struck: dict[str, Any]) -> dict[str, Any]:
    """Wait for the next decided step after all replacements are ready, and tell what it took."""
    kill: Kill = struck["kill"]
    while not (found := after_death(list(run.events()), struck))["settled"]:
        if run.process.poll() is not None:
            break
        time.sleep(0.02)
    now = run.workers()
    survivors = {name: pid for name, pid in struck["pids"].items() if name not in struck["workers"]}
    certificate = now[struck["workers"][-1]].get("certificate") or {}
    died, ready, settled = found["died"], found["ready"], found["settled"]
    return {
        "worker": kill.worker,
        "after_step": kill.step,
        "to_report_s": round(died - struck["at"], 3) if died else None,
        "to_ready_s": round(ready - struck["at"], 2) if ready else None,
        "to_settled_step_s": round(settled - struck["at"], 2) if settled else None,
        "ready_to_settled_s": round(settled - ready, 2) if settled and ready else None,
        "steps_again": found["steps_again"],
        "replacement_s": {k: round(v, 2) for k, v in certificate.get("seconds", {}).items()},
        "cache": certificate.get("cache"),
        "survivors_kept": {name: now[name]["pid"] == pid for name, pid in survivors.items()},
    }


def after_death(events: list[dict[str, Any]], struck: dict[str, Any]) -> dict[str, Any]:
    """What events tell of a kill so far.

    Args:
        events: of the run, all of them.
        struck: what `strike` gave.

    Returns:
        `died`: when the last of those killed was reported; `ready`: when the slowest replacement was;
        `settled`: when the next step was decided after that, or, where only a target was killed, after
        the kill; each in seconds, None while it has not been. `steps_again`: decided steps that a restore
        undid.
    """
    after = [event for event in events if seconds(event) >= struck["at"]]

    def last_of(name: str) -> float | None:
        first = {}
        for event in after:
            if event["event"] == name and event.get("worker") in struck["workers"]:
                first.setdefault(event["worker"], seconds(event))
        return max(first.values()) if len(first) == len(struck["workers"]) else None

    ready = last_of("worker ready")
    since = ready if any(name.startswith("drafter/") for name in struck["workers"]) else struck["at"]
    decided = [seconds(e) for e in after if e["event"] == "step decided" and since and seconds(e) > since]
    before, again = 0, 0
    for event in events:
        if event["event"] == "step decided":
            before = event["step"]
        elif event["event"] == "restored" and seconds(event) >= struck["at"]:
            again += before - event.get("step", 0)
    return {
        "died": last_of("worker died"),
        "ready": ready,
        "settled": decided[0] if ready and decided else None,
        "steps_again": again,
    }


def main() -> None:
    """Run, kill, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--kill", action="append", type=Kill.of, required=True)
    parser.add_argument("--log", type=Path, default=Path("deaths.log"))
    parser.add_argument("arguments", nargs="+")
    asked = parser.parse_args()
    name = asked.arguments[asked.arguments.index("--name") + 1]
    run = Run(asked.binary, asked.arguments, name, asked.log)
    found = []
    for kill in asked.kill:
        found.append(recovered(run, strike(run, kill)))
        sys.stderr.write(json.dumps(found[-1]) + "\n")
    code = run.end()
    events = [e["event"] for e in run.events()]
    told = {"bench": "deaths", "exit": code, "restores": events.count("restored"), "deaths": found}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
