"""Warm-up: every planned shape through the real call site, twice, and the certificate that proves it.

The order of a warm-up: digest the state, first pass over all buckets, compare with the dense oracle
at a small shape, restore the state, record what is to be replayed, second pass, restore, digest again,
seal. On CPU under `attention: sdpa` nothing compiles, and the same contract says so: counted, not assumed.
The compiler's settings are never assigned here, so none of this depends on the thread that asks: see
`flex`.

Source: README, Invariants, I1 and I3.
"""

from __future__ import annotations

import hashlib
import json
import platform
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from dflash_runner import devices, host
from dflash_runner.certificate import Certificate, Progress
from dflash_runner.config import Configuration
from dflash_runner.kept import Kept, digest
from dflash_runner.watch import Calls, Watch, cache_counts, graphs

PASSES = 2
CACHE_NONE = "none"  # nothing is compiled under sdpa, so there is no cache to be cold or warm


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What one bucket's run did."""

    gradients: bool  # forward, backward and optimiser ran, and the parameters moved
    padded_anchors: bool  # the row had anchors that count and anchors that are padding
    step_ms: float  # from the row to the end of the update, the device included


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How far the real attention is from the dense oracle, and how far it may be."""

    largest: float
    tolerance: float


class Subject(Protocol):
    """What is warmed up: a role's compute."""

    def run(self, bucket: int) -> Ran:
        """The real call site at one bucket, as an order would reach it."""

    def record(self, bucket: int) -> None:
        """Whatever has to be done once between the passes, at one bucket: from then on orders are done as in
        the second pass."""

    def held_bytes(self) -> int:
        """Of the device, by what was recorded: beside the most that a pass takes."""

    @property
    def precision(self) -> str:
        """Of the products of layers and head: one of `config.PRECISIONS`."""

    def products(self) -> tuple[int, int]:
        """How many products of layers and of the head ran in fp8 so far."""

    def calls(self, *, named: bool) -> Calls:
        """Counts this subject's attention while open; with `named`, records what ran as well."""

    def oracle(self) -> Difference:
        """A comparison with loops at a small shape."""

    def state(self) -> Mapping[str, Tensor]:
        """Everything that must be as before; live tensors."""

    def changing(self) -> Mapping[str, Tensor]:
        """What of `state` a run changes: it is copied, and `restore` puts it back."""

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Put copies of `changing` back."""

    def shapes(self) -> Mapping[str, object]:
        """What fixes the shapes, for the fingerprint."""


class Clock:
    """Seconds per phase."""

    def __init__(self, started: float) -> None:
        """Start at `started`, as `time.perf_counter` gave it."""
        self.seconds: dict[str, float] = {}
        self._started = self._at = started

    def lap(self, phase: str) -> float:
        """The seconds since the last lap, which are put down to `phase`."""
        now = time.perf_counter()
        spent, self._at = now - self._at, now
        self.seconds[phase] = self.seconds.get(phase, 0.0) + spent
        return spent

    def skip(self) -> None:
        """Put the time since the last lap, in which the gate was waited for, down to nobody."""
        self._at = time.perf_counter()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pass:
    """What one pass over all buckets came to."""

    ran: tuple[Ran, ...]
    compiles: int
    products: tuple[int, int]  # in fp8, of layers and of the head
    step_ms: float  # of the longest bucket


@dataclass(frozen=True, kw_only=True, slots=True)
class _Before:
    """What a warm-up began with."""

    kept: Kept
    digest: bytes
    graphs: int
    cache: tuple[int, int]  # hits and misses

    @classmethod
    def of(cls, subject: Subject) -> Self:
        """As it is."""
        return cls(
            kept=Kept.of(subject.changing()),
            digest=digest(subject.state()),
            graphs=graphs(),
            cache=cache_counts(),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Passes:
    """What both passes and the phases between them came to."""

    first: _Pass
    unnamed: Calls  # of the first
    difference: Difference
    between: int  # compiles of the recordings
    second: _Pass
    named: Calls  # of the second


def prepare_torch(configuration: Configuration) -> None:
    """Set threads, the device, seeds and determinism, once, before any torch work.

    Raises:
        WorkerError: as `devices.prepare` says.

    Source: README, Invariants, I7: bits depend on the number of threads.
    """
    torch.set_num_threads(configuration.threads)
    torch.set_num_interop_threads(1)
    torch.utils.deterministic.fill_uninitialized_memory = False  # costs time, and hides no bug here
    devices.prepare(torch.device(configuration.device))
    torch.manual_seed(configuration.seed)
    random.seed(configuration.seed)


def warm_up(
    subject: Subject,
    *,
    configuration: Configuration,
    watch: Watch,
    clock: Clock,
    progress: Callable[[Progress], None],
) -> Certificate:
    """The certificate of `subject`; afterwards a compile or a dense call is a violation.

    Args:
        subject: a role's compute; its state is as before when this returns.
        configuration: of the worker.
        watch: counting since the role was built.
        clock: with the laps of import and build.
        progress: told of every bucket of every pass.

    Raises:
        WorkerError: fatal, where flex attention ran dense.
    """
    clock.skip()
    before = _Before.of(subject)
    passes = _passes(
        subject, configuration=configuration, watch=watch, clock=clock, progress=progress, before=before
    )
    before.kept.restore(subject.restore)
    after = digest(subject.state())
    watch.seal()
    return _certificate(
        subject,
        configuration=configuration,
        before=before,
        passes=passes,
        after=after,
        dense_calls=watch.dense_calls,
        seconds={**clock.seconds, "total": sum(clock.seconds.values())},
    )


def _passes(
    subject: Subject,
    *,
    configuration: Configuration,
    watch: Watch,
    clock: Clock,
    progress: Callable[[Progress], None],
    before: _Before,
) -> _Passes:
    """Both passes and what stands between them, each phase a lap; the second leaves the state changed."""
    with subject.calls(named=False) as unnamed:
        first = _run_pass(subject, configuration, watch, progress, phase="first_pass")
    clock.lap("first_pass")
    progress(Progress(phase="oracle", done=0, total=1))
    difference = subject.oracle()
    progress(Progress(phase="oracle", done=1, total=1))
    clock.lap("oracle")
    before.kept.restore(subject.restore)
    between = _record(subject, configuration, watch, progress)
    clock.lap("record")
    with subject.calls(named=True) as named:
        second = _run_pass(subject, configuration, watch, progress, phase="second_pass")
    clock.lap("second_pass")
    return _Passes(
        first=first, unnamed=unnamed, difference=difference, between=between, second=second, named=named
    )


def _certificate(
    subject: Subject,
    *,
    configuration: Configuration,
    before: _Before,
    passes: _Passes,
    after: bytes,
    dense_calls: int,
    seconds: dict[str, float],
) -> Certificate:
    """What was counted and measured, as the supervisor checks it."""
    first, second, device = passes.first, passes.second, torch.device(configuration.device)
    hits, misses = (now - then for now, then in zip(cache_counts(), before.cache, strict=True))
    ran = first.ran + second.ran
    return Certificate(
        fingerprint=fingerprint(configuration, subject.shapes()),
        attention=configuration.attention,
        buckets=configuration.training.buckets,
        passes=PASSES,
        graphs=graphs() - before.graphs,
        cache=_cache(compiled=graphs() > before.graphs, hits=hits, misses=misses),
        cache_hits=hits,
        cache_misses=misses,
        seconds=seconds,
        kernels=tuple(sorted({*passes.unnamed.kernels, *passes.named.kernels})),
        attention_calls=passes.unnamed.total + passes.named.total,
        dense_calls=dense_calls,
        first_pass_compiles=first.compiles,
        second_pass_compiles=passes.between + second.compiles,
        peak_bytes=_peak_bytes(configuration) + subject.held_bytes(),
        step_ms=second.step_ms,
        digest_before=before.digest,
        digest_after=after,
        dense_difference=passes.difference.largest,
        dense_tolerance=passes.difference.tolerance,
        device=configuration.device,
        torch=torch.__version__,
        environment={**host.relevant_environment(), **devices.facts(device)},
        gradients=all(one.gradients for one in ran),
        padded_anchors=all(one.padded_anchors for one in ran),
        precision=subject.precision,
        linear_products=first.products[0] + second.products[0],
        head_products=first.products[1] + second.products[1],
        product_kernels=passes.named.products,
    )


def fingerprint(configuration: Configuration, shapes: Mapping[str, object]) -> str:
    """SHA-256, in hex, of all that a certificate is about: what decides the kernels, and how they run.

    It is for people and for comparing workers. Neither the compilers' cache nor a resume goes by it: the
    supervisor names the one by its own facts, and compares what a run is made of by the manifest.

    Args:
        configuration: its rank, seed and paths play no part: peers share a fingerprint.
        shapes: of the subject.
    """
    facts = {
        "role": configuration.role.value,
        "device": configuration.device,
        **devices.kernels_depend_on(torch.device(configuration.device)),
        "threads": configuration.threads,
        "attention": configuration.attention,
        "flex": asdict(configuration.flex),
        "training": asdict(configuration.training),
        "shapes": dict(shapes),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _run_pass(
    subject: Subject,
    configuration: Configuration,
    watch: Watch,
    progress: Callable[[Progress], None],
    *,
    phase: str,
) -> _Pass:
    """One run of every bucket, in order."""
    compiles, products = watch.compiles, subject.products()
    buckets = configuration.training.buckets
    ran = []
    for done, bucket in enumerate(buckets):
        progress(Progress(phase=phase, bucket=bucket, done=done, total=len(buckets)))
        ran.append(subject.run(bucket))
    progress(Progress(phase=phase, bucket=buckets[-1], done=len(buckets), total=len(buckets)))
    linears, heads = (now - then for now, then in zip(subject.products(), products, strict=True))
    compiles = watch.compiles - compiles
    return _Pass(ran=tuple(ran), compiles=compiles, products=(linears, heads), step_ms=ran[-1].step_ms)


def _record(
    subject: Subject, configuration: Configuration, watch: Watch, progress: Callable[[Progress], None]
) -> int:
    """Compiles meanwhile; whatever is replayed from now on was recorded."""
    compiles = watch.compiles
    buckets = configuration.training.buckets[::-1]  # shorter ones fit into what the longest left
    for done, bucket in enumerate(buckets):
        progress(Progress(phase="record", bucket=bucket, done=done, total=len(buckets)))
        subject.record(bucket)
    progress(Progress(phase="record", bucket=buckets[-1], done=len(buckets), total=len(buckets)))
    return watch.compiles - compiles


def _cache(*, compiled: bool, hits: int, misses: int) -> str:
    """Warm where everything came from the cache; a miss writes an entry, so one of them is cold."""
    if not compiled:
        return CACHE_NONE
    return "warm" if hits > 0 and misses == 0 else "cold"


def _peak_bytes(configuration: Configuration) -> int:
    """The most memory held so far: of the device, or on a CPU of the host."""
    if configuration.device == "cpu":
        return host.peak_bytes()
    return torch.cuda.max_memory_allocated(configuration.device)
