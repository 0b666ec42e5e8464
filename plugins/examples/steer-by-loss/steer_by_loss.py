"""A scheduling plugin: rows come from where the drafter is worst of late.

It keeps its settings alone: what an answer needs, the question brings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from dflash_runner import scheduler
from dflash_runner.scheduler import ArrangeRequest, Config, Field, Info, Type

TOLD = 8  # sources of a question that stand in the log


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The plugin's configuration; the defaults stand in the schema."""

    strength: float
    least: float


class SteerByLoss(scheduler.Scheduler):
    """Mixes the sources of a horizon by their recent losses, each in the built-in's order."""

    def info(self) -> Info:
        """Who this is."""
        return Info(name="steer-by-loss", version="1.0.0")

    def schema(self) -> tuple[Field, ...]:
        """The keys of the configuration."""
        return (
            Field(
                key="strength",
                type=Type.NUMBER,
                default=2.0,
                min=0,
                max=8,
                doc="how much more is taken of a source whose loss is higher: its power; 0: no steering",
            ),
            Field(
                key="least",
                type=Type.NUMBER,
                default=0.25,
                min=0,
                max=1,
                doc="the least of a source that is taken, as a part of what would be without steering",
            ),
        )

    def configure(self, config: Config) -> None:
        """Take the configuration."""
        self.settings = config.decode(Settings)

    def arrange(self, request: ArrangeRequest) -> list[int]:
        """Samples of the pool, mixed so that a source with twice the mean loss comes 2**strength as often."""
        of: list[list[int]] = [[] for _ in request.sources]
        for sample, source in zip(request.pool.sample_P, request.pool.source_P, strict=True):
            of[source].append(sample)
        counts = [len(samples) for samples in of]
        shares = weights(counts, [s.loss for s in request.sources], self.settings)
        told = [
            f"{json.dumps(s.name)}: loss {s.loss}, samples {n}, share {share:.3f}"
            for s, n, share in zip(request.sources, counts, shares, strict=True)
            if n
        ]
        print("arrange:", *told[:TOLD], sep="\n  ")  # noqa: T201 to the plugin's log
        left = [iter(samples) for samples in of]
        return [next(left[source]) for source in mixed(counts, shares, min(request.count, len(request.pool)))]


def weights(counts: list[int], losses: list[float | None], settings: Settings) -> list[float]:
    """How often each source comes: its samples, times its loss over the mean to a power.

    Args:
        counts: samples of each source in the pool.
        losses: recent, of each source; None counts as the mean.
        settings: the power and the least.
    """
    known = [(n, loss) for n, loss in zip(counts, losses, strict=True) if loss is not None and n]
    total = sum(n * loss for n, loss in known)
    mean = total / sum(n for n, _ in known) if total > 0 else 0.0
    factors = [(loss / mean) ** settings.strength if loss is not None and mean else 1.0 for loss in losses]
    return [n * max(factor, settings.least) for n, factor in zip(counts, factors, strict=True)]


def mixed(counts: list[int], shares: list[float], places: int) -> Iterator[int]:
    """Which source each place is of: as even a mix as there is, until a source has no more.

    Args:
        counts: samples of each source, at least `places` together.
        shares: how often each comes.
        places: how many.

    Source: smooth weighted round robin, as nginx spreads requests over servers.
    """
    left, credit = list(counts), [0.0] * len(counts)
    for _ in range(places):
        live = [s for s, n in enumerate(left) if n]
        for source in live:
            credit[source] += shares[source]
        best = max(live, key=lambda s: credit[s])
        credit[best] -= sum(shares[s] for s in live)
        left[best] -= 1
        yield best


if __name__ == "__main__":
    scheduler.serve(SteerByLoss())
