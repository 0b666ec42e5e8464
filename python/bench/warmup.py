"""What warm-up costs a first worker, and one after it that finds the first one's kernels.

`python warmup.py`: two processes, one after the other, with one fresh compile cache; each builds the
reference workload's drafter on a GPU and warms it up as a worker does. Prints one JSON object: for each the
certificate's seconds, hits and misses. `--scale` as in step.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def one(directory: Path, *, scale: int) -> dict[str, object]:
    """The certificate of this process, as far as it is about time."""
    started = time.perf_counter()
    from dflash_runner import config
    from dflash_runner.trainer import Trainer
    from dflash_runner.warmup import Clock, prepare_torch, warm_up
    from dflash_runner.warmup_drafter import DrafterSubject
    from dflash_runner.watch import Watch
    from step import message

    clock = Clock(started)
    configuration = config.from_message(message(directory, scale=scale, device="cuda:0"))
    prepare_torch(configuration)
    clock.lap("import")
    trainer = Trainer(configuration)
    clock.lap("build")
    certificate = warm_up(
        DrafterSubject(trainer, configuration=configuration),
        configuration=configuration,
        watch=Watch(),
        clock=clock,
        progress=lambda _: None,
    )
    return {
        "cache": certificate.cache,
        "hits": certificate.cache_hits,
        "misses": certificate.cache_misses,
        "compiles": certificate.first_pass_compiles,
        "seconds": {name: round(value, 2) for name, value in certificate.seconds.items()},
        "wall_s": round(time.perf_counter() - started, 2),
    }


def both(scale: int) -> dict[str, object]:
    """A cold and a warm one, and what the second costs of the first."""
    from step import message, save_head

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        drafter = message(directory, scale=scale, device="cuda:0").drafter
        save_head(directory, vocabulary=drafter.vocab_size, hidden=drafter.hidden_size)
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": str(directory / "cache"),
            "TRITON_CACHE_DIR": str(directory / "cache" / "triton"),
        }
        found = []
        for _ in range(2):
            command = [sys.executable, __file__, "--scale", str(scale), "--one", name]
            done = subprocess.run(command, env={**os.environ, **caches}, stdout=subprocess.PIPE, check=True)
            found.append(json.loads(done.stdout))
    cold, warm = found

    def spent(of: dict[str, object]) -> float:
        seconds = of["seconds"]
        return seconds["first_pass"] + seconds["second_pass"] + seconds.get("oracle", 0.0)

    return {"bench": "warmup", "first": cold, "second": warm, "ratio": round(spent(warm) / spent(cold), 3)}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--one", type=Path)
    asked = parser.parse_args()
    found = both(asked.scale) if asked.one is None else one(asked.one, scale=asked.scale)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
