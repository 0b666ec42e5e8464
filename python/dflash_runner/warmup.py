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
from typing import Protocol

import torch
from torch import Tensor

from dflash_runner import devices, host
from dflash_runner.certificate import Certificate, Progress
from dflash_runner.config import Configuration
from dflash_runner.fold import fold
from dflash_runner.image import tensors_digest
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
    saved = {name: _copy(tensor) for name, tensor in subject.changing().items()}
    generators = _generators()
    before = _digest(subject)
    graphs_before, cache_before = graphs(), cache_counts()
    with subject.calls(named=False) as unnamed:
        first = _run_pass(subject, configuration, watch, progress, phase="first_pass")
    clock.lap("first_pass")
    progress(Progress(phase="oracle", done=0, total=1))
    difference = subject.oracle()
    progress(Progress(phase="oracle", done=1, total=1))
    clock.lap("oracle")
    _restore(subject, saved, generators)
    between = _record(subject, configuration, watch, progress)
    clock.lap("record")
    with subject.calls(named=True) as named:
        second = _run_pass(subject, configuration, watch, progress, phase="second_pass")
    clock.lap("second_pass")
    _restore(subject, saved, generators)
    after = _digest(subject)
    watch.seal()
    hits, misses = (now - then for now, then in zip(cache_counts(), cache_before, strict=True))
    seconds = {**clock.seconds, "total": sum(clock.seconds.values())}
    ran = first.ran + second.ran
    return Certificate(
        fingerprint=fingerprint(configuration, subject.shapes()),
        attention=configuration.attention,
        buckets=configuration.training.buckets,
        passes=PASSES,
        graphs=graphs() - graphs_before,
        cache=_cache(compiled=graphs() > graphs_before, hits=hits, misses=misses),
        cache_hits=hits,
        cache_misses=misses,
        seconds=seconds,
        kernels=tuple(sorted({*unnamed.kernels, *named.kernels})),
        attention_calls=unnamed.total + named.total,
        dense_calls=watch.dense_calls,
        first_pass_compiles=first.compiles,
        second_pass_compiles=between + second.compiles,
        peak_bytes=_peak_bytes(configuration) + subject.held_bytes(),
        step_ms=second.step_ms,
        digest_before=before,
        digest_after=after,
        dense_difference=difference.largest,
        dense_tolerance=difference.tolerance,
        device=configuration.device,
        torch=torch.__version__,
        environment={
            **host.relevant_environment(),
            **devices.facts(torch.device(configuration.device)),
        },
        gradients=all(one.gradients for one in ran),
        padded_anchors=all(one.padded_anchors for one in ran),
        precision=subject.precision,
        linear_products=first.products[0] + second.products[0],
        head_products=first.products[1] + second.products[1],
        product_kernels=named.products,
    )


def fingerprint(configuration: Configuration, shapes: Mapping[str, object]) -> str:
    """SHA-256, in hex, of all that decides which kernels this worker needs.

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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Generators:
    """The state of every generator of random numbers that a run might use."""

    torch_state: Tensor
    device_states: list[Tensor]
    python_state: object


def _generators() -> _Generators:
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return _Generators(
        torch_state=torch.get_rng_state(), device_states=devices, python_state=random.getstate()
    )


def _restore(subject: Subject, saved: Mapping[str, Tensor], generators: _Generators) -> None:
    """Parameters, optimiser state and generators as they were."""
    subject.restore(saved)
    torch.set_rng_state(generators.torch_state)
    if generators.device_states:
        torch.cuda.set_rng_state_all(generators.device_states)
    random.setstate(generators.python_state)  # type: ignore[arg-type]


def _digest(subject: Subject) -> bytes:
    """SHA-256 of parameters, optimiser state and generators; of what is on a device, of its fold."""
    python = torch.frombuffer(bytearray(repr(random.getstate()).encode()), dtype=torch.uint8)
    generators = {"rng.torch": torch.get_rng_state(), "rng.python": python}
    for number, state in enumerate(_generators().device_states):
        generators[f"rng.device.{number}"] = state
    held = {name: tensor if tensor.is_cpu else fold(tensor) for name, tensor in subject.state().items()}
    return tensors_digest({**held, **generators})


def _copy(tensor: Tensor) -> Tensor:
    """A copy to restore from; of zeros, which the moments of a fresh optimiser are, just one."""
    if tensor.is_cpu or bool(tensor.any()):
        return tensor.detach().clone()
    return tensor.new_zeros(()).expand_as(tensor)


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
