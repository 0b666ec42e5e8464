"""Compiled attention on a real GPU: its kernels, its certificate, and each try to defeat it.

One process, one warm-up; what breaks a worker for good is undone before the next test. Run alone:
`python -m pytest -m gpu python/tests/test_flex_gpu.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import json
import os
import random
import shutil
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import torch
from dflash_runner import config, flex
from dflash_runner.attention import Attend, Rule
from dflash_runner.certificate import Certificate
from dflash_runner.communicator import Communicator
from dflash_runner.compiled import Compiled
from dflash_runner.config import FlexSettings
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.flex import Flex
from dflash_runner.frames import Piece
from dflash_runner.preparation import Prepared
from dflash_runner.trainer import Trainer
from dflash_runner.warmup import Clock, warm_up
from dflash_runner.warmup_drafter import DrafterSubject
from dflash_runner.watch import Watch
from dflash_runner.worker.v1 import worker_pb2
from safetensors.torch import save_file
from test_tiles import make_rule
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint
from worker_host import PYTHON, Host, running

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # the compiler's own, of which some depend on the machine
]

BUCKETS = (512, 900, 1024)  # one of them no multiple of a tile
ANCHORS, BLOCK, HEADS, KV_HEADS, HEAD = 64, 16, 8, 2, 128
VOCABULARY, HIDDEN, LAYERS = 512, 256, 2
RELATIVE = 1e-2  # of the norm of the exact result: two roundings to bfloat16 and sums in float32
LARGEST = 3e-2  # of the largest exact element
DEADLINE_S = 170.0  # of a whole warm-up of another process


def message(directory: Path) -> worker_pb2.Configuration:
    """A small drafter on a GPU; its target is no more than an embedding."""
    return worker_pb2.Configuration(
        role=worker_pb2.ROLE_DRAFTER,
        world_size=1,
        generation=1,
        device="cuda:0",
        threads=4,
        seed=3,
        attention="flex",
        flex=worker_pb2.Flex(copy_keys=True),
        target=worker_pb2.Target(directory=str(directory), dtype="bfloat16", layer_ids=[1, 2, 3]),
        drafter=worker_pb2.Drafter(
            layers=LAYERS,
            hidden_size=HIDDEN,
            intermediate_size=512,
            heads=HEADS,
            kv_heads=KV_HEADS,
            head_dim=HEAD,
            vocab_size=VOCABULARY,
            rms_norm_eps=1e-6,
            rope_theta=10000.0,
            block_size=BLOCK,
            mask_token_id=VOCABULARY - 1,
            target_layers=6,
            max_position_embeddings=2048,
        ),
        training=worker_pb2.Training(
            buckets=list(BUCKETS),
            anchors=ANCHORS,
            gamma=7.0,
            weight_constant=400.0,
            beta1=0.9,
            beta2=0.95,
            epsilon=1e-8,
            clip_norm=1.0,
            rows_per_step=1,
            compute_dtype="bfloat16",
        ),
    )


class Worker:
    """A drafter that was warmed up."""

    def __init__(self, directory: Path, watch: Watch) -> None:
        clock = Clock(0.0)
        settings = config.from_message(message(directory))
        self.directory, self.watch = directory, watch
        self.trainer = Trainer(settings)
        assert isinstance(self.trainer.attention, Flex)
        self.flex = self.trainer.attention
        self.subject = DrafterSubject(self.trainer, configuration=settings)
        clock.skip()
        self.certificate: Certificate = warm_up(
            self.subject, configuration=settings, watch=watch, clock=clock, progress=lambda _: None
        )

    def order(self, bucket: int) -> None:
        """One `train`, as the role does it."""
        self.subject.run(bucket)
        self.watch.check()


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    """The process's counters, and a cache of its own; both are gone again when the module is done."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    operator = importlib.import_module("torch._higher_order_ops.flex_attention")
    inner = operator._math_attention_inner  # noqa: SLF001
    torch._dynamo.reset()  # noqa: SLF001
    watch = Watch()
    yield watch
    operator._math_attention_inner = inner  # noqa: SLF001
    torch._dynamo.callback.callback_handler.remove_start_callback(watch._on_compile)  # noqa: SLF001
    torch.compiler.set_stance("default")
    torch._dynamo.reset()  # noqa: SLF001
    patch.undo()


@pytest.fixture(scope="module")
def worker(watch: Watch, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    """Warmed up once for the module; from then on the process is sealed."""
    directory = tmp_path_factory.mktemp("target")
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(VOCABULARY, HIDDEN, generator=generator).bfloat16()
    save_file({"model.embed_tokens.weight": embedding}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    return Worker(directory, watch)


@pytest.fixture
def struck(worker: Worker) -> Iterator[Worker]:
    """The worker, whose record is wiped afterwards, as no real one's ever is."""
    yield worker
    gc.collect()
    torch.compiler.set_stance("fail_on_recompile")
    operations = worker.trainer.operations  # themselves: `astuple` would give copies
    compiled = [getattr(operations, field.name) for field in dataclasses.fields(operations)]
    for made in (worker.flex._compiled, *compiled):  # noqa: SLF001
        if isinstance(made, Compiled):
            made._refused = ""  # noqa: SLF001
    worker.trainer.attention = worker.flex
    worker.trainer.drop()
    worker.watch.seal()


def rule_of(length: int, *, seed: int = 0, anchors: int = ANCHORS) -> Rule:
    """A row's rule on the GPU: documents, padding tokens and padding anchors."""
    rule = make_rule(seed=seed, rows=1, length=length, anchors=anchors, block_size=BLOCK, documents=3)
    return Rule(
        anchors_BN=rule.anchors_BN.cuda(),
        keep_BN=rule.keep_BN.cuda(),
        documents_BS=rule.documents_BS.cuda(),
        block_size=BLOCK,
    )


def drawn(rule: Rule, *, seed: int = 0) -> list[Tensor]:
    """Queries, keys and values for a rule, bfloat16 with gradients."""
    length, queries = rule.documents_BS.shape[1], rule.anchors_BN.shape[1] * BLOCK
    generator = torch.Generator().manual_seed(seed)
    shapes = [(HEADS, queries), (KV_HEADS, length + queries), (KV_HEADS, length + queries)]
    return [
        torch.randn(1, *shape, HEAD, generator=generator).bfloat16().cuda().requires_grad_()
        for shape in shapes
    ]


def exactly(rule: Rule, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Dense attention under the element-wise mask, in the dtype of its inputs: float64."""
    key, value = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (key, value))
    score = (query @ key.transpose(2, 3)) / HEAD**0.5
    return score.masked_fill(~rule.dense_mask(), float("-inf")).softmax(dim=-1) @ value


@pytest.mark.parametrize("length", BUCKETS)
def test_forward_and_backward_equal_the_dense_oracle(watch: Watch, length: int) -> None:
    """Within the bounds above, on a random row of each bucket, for the output and three gradients."""
    rule = rule_of(length, seed=length)
    tensors = drawn(rule)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    got, want = Flex(FlexSettings()).over(rule)(*tensors), exactly(rule, *exact)
    assert got.dtype == torch.bfloat16
    seed = torch.randn(want.shape, generator=torch.Generator().manual_seed(1)).bfloat16().cuda()
    got.backward(seed)
    want.backward(seed.double())
    names = ("output", "query", "key", "value")
    pairs = zip([got, *(t.grad for t in tensors)], [want, *(t.grad for t in exact)], strict=True)
    for name, (one, other) in zip(names, pairs, strict=True):
        difference, exact_one = one.detach().double() - other.detach(), other.detach()
        relative = float(difference.norm() / exact_one.norm())
        largest = float(difference.abs().max() / exact_one.abs().max())
        print(f"bucket {length} {name}: relative {relative:.2e}, largest {largest:.2e}")  # noqa: T201
        assert relative <= RELATIVE, name
        assert largest <= LARGEST, name
    assert watch.dense_calls == 0


def forget(watch: Watch) -> None:
    """Drop all graphs; the compiler then forgets who listens as well."""
    torch._dynamo.reset()  # noqa: SLF001
    torch._dynamo.callback.on_compile_start(watch._on_compile)  # noqa: SLF001


def test_nine_shapes(watch: Watch) -> None:
    """The ninth raises, where plain compiling would run dense for ever; forward only, as it is quicker."""
    forget(watch)
    attention = Flex(FlexSettings())
    for place in range(8):
        rule = rule_of(128 + 128 * place, anchors=8)
        attention.over(rule)(*drawn(rule))
    ninth = rule_of(128 * 9, anchors=8)
    with pytest.raises(WorkerError, match="FailOnRecompileLimitHit") as refused:
        attention.over(ninth)(*drawn(ninth))
    assert refused.value.kind is Kind.FATAL
    assert watch.dense_calls == 0
    forget(watch)


def test_one_warm_up_yields_a_certificate(worker: Worker) -> None:
    """Every field that a GPU alone can prove."""
    certificate = worker.certificate
    print(certificate)  # noqa: T201
    assert (certificate.attention, certificate.device) == ("flex", "cuda:0")
    operations = 2 + 2 + 1 + 1 + 1 + 2  # heads, sums, norm, gate, loss, updates of matrices and of norms
    assert certificate.graphs == operations + 3 * len(BUCKETS) + 1  # and the oracle's attention
    assert (certificate.dense_calls, certificate.second_pass_compiles) == (0, 0)
    assert certificate.first_pass_compiles >= operations + 3 * len(BUCKETS)
    assert certificate.attention_calls == LAYERS * len(BUCKETS) * 2
    backward = [name for name in certificate.kernels if "flex_attention_backward" in name]
    assert backward and len(backward) < len(certificate.kernels), certificate.kernels
    assert all("flex_attention" in name for name in certificate.kernels)
    assert certificate.cache == "cold" and certificate.cache_misses > 0
    assert certificate.digest_before == certificate.digest_after
    assert 0 < certificate.dense_difference <= certificate.dense_tolerance
    assert (certificate.gradients, certificate.padded_anchors) == (True, True)
    assert certificate.peak_bytes > 0


def mixed(worker: Worker, chooser: random.Random) -> tuple[dict[str, Tensor], list[Piece]]:
    """A packed row of a bucket: documents of lengths from 16 up, of which a first part is a prompt."""
    bucket, start, pieces = chooser.choice(BUCKETS), 0, []
    documents = torch.full((bucket,), -1, dtype=torch.int32)
    mask = torch.zeros(bucket, dtype=torch.uint8)
    while (left := bucket - start) >= 16 and len(pieces) < 16:
        length = min(left, int(16 * (bucket / 16) ** chooser.random()))
        prompt = int(length * 0.8 * chooser.random())
        documents[start : start + length] = len(pieces)
        mask[start + prompt : start + length] = 1
        anchors = min(length - prompt - 1, ANCHORS // 16)
        pieces.append(Piece(len(pieces), 0, start, length, anchors))
        start += length
    tensors, _ = worker.subject._row(bucket)  # noqa: SLF001
    return tensors | {"documents": documents, "loss_mask": mask}, pieces


def test_two_thousand_steps_of_mixed_lengths_compile_nothing(worker: Worker) -> None:
    """And nothing dense runs: packed rows of every bucket in random order, whole steps, checked each."""
    compiles, chooser, seen = worker.watch.compiles, random.Random(0), set()
    saved = {name: tensor.clone() for name, tensor in worker.subject.changing().items()}
    alone = Communicator("", number=1, world=1, rank=0)
    for step in range(2000):
        tensors, pieces = mixed(worker, chooser)
        seen.add((len(tensors["tokens"]), len(pieces)))
        worker.trainer.micro_step(worker.trainer.prepare(tensors, epoch=0, pieces=pieces), row=step)
        assert worker.trainer.reduce(alone).finite
        worker.trainer.apply(lr=1e-5)
        worker.watch.check()
    worker.subject.restore(saved)
    assert (worker.watch.compiles, worker.watch.dense_calls) == (compiles, 0)
    assert len(seen) > 3 * len(BUCKETS)


def test_rows_prepared_beside_a_step_are_those_prepared_alone(worker: Worker) -> None:
    """On another thread and stream, fetched from the device, and let go of while the device still reads
    them: every row's loss has the bits of one for which everything waited."""
    chooser, number = random.Random(1), 40
    rows = [mixed(worker, chooser) for _ in range(number)]
    rows = [({name: tensor.cuda() for name, tensor in tensors.items()}, pieces) for tensors, pieces in rows]
    torch.cuda.synchronize()
    alone = Communicator("", number=1, world=1, rank=0)

    def prepare(at: int) -> Prepared:
        tensors, pieces = rows[at % number]
        return worker.trainer.prepare(tensors, epoch=at % number, pieces=pieces)

    want, got = [], []
    for at in range(number):
        prepared = prepare(at)
        torch.cuda.synchronize()
        worker.trainer.micro_step(prepared, row=at)
        want += worker.trainer.reduce(alone).rows
        worker.trainer.drop()
    with ThreadPoolExecutor(1) as copier:
        coming = copier.submit(prepare, 0)
        for at in range(number):
            prepared, coming = coming.result(), copier.submit(prepare, at + 1)
            worker.trainer.micro_step(prepared, row=at)
            del prepared
            if at % 4 == 3:
                got += worker.trainer.reduce(alone).rows
                worker.trainer.drop()
        coming.result()
    assert got == want
    worker.watch.check()


def test_no_gradients_after_ready(struck: Worker) -> None:
    """Another gradient mode is another graph, and is refused, now and in the next order."""
    struck.order(BUCKETS[0])
    with torch.no_grad(), pytest.raises(WorkerError, match="fail_on_recompile"):
        struck.order(BUCKETS[0])
    with pytest.raises(WorkerError, match="refused before"):
        struck.order(BUCKETS[0])


def test_an_unplanned_length_after_ready(struck: Worker) -> None:
    """A row of a length that is no bucket."""
    with pytest.raises(WorkerError, match="fail_on_recompile"):
        struck.order(BUCKETS[0] + 64)


def test_another_dtype(struck: Worker) -> None:
    """Refused by name."""
    rule = rule_of(BUCKETS[0])
    query, key, value = drawn(rule)
    with pytest.raises(WorkerError, match=r"in torch.bfloat16, got torch.float16"):
        struck.flex.over(rule)(query.half(), key.half(), value.half())
    with pytest.raises(WorkerError, match="refused before"):
        struck.order(BUCKETS[0])


def test_a_thread_that_calls_the_model(struck: Worker) -> None:
    """It is refused, and the next order tells of it."""
    told: list[str] = []

    def call() -> None:
        try:
            struck.subject.run(BUCKETS[0])
        except WorkerError as err:
            told.append(err.message)

    thread = threading.Thread(target=call, name="eager")
    thread.start()
    thread.join()
    assert told and "want the thread that made it, got thread 'eager'" in told[0]
    with pytest.raises(WorkerError, match="refused before"):
        struck.order(BUCKETS[0])


class Recomputed:
    """Compiled or eager flex attention in a checkpointed region, whose recompute is eager."""

    def __init__(self, flex: Flex, *, compiled_first: bool) -> None:
        self.counter, self._flex, self._compiled_first = flex.counter, flex, compiled_first

    def over(self, rule: Rule) -> Attend:
        mask, compiled, runs = flex.block_mask(rule), self._flex.over(rule), []

        def region(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            runs.append(None)
            if self._compiled_first and len(runs) <= LAYERS:
                return compiled(query, key, value)
            return flex_attention(query, key, value, block_mask=mask, enable_gqa=True)

        return lambda *tensors: checkpoint(region, *tensors, use_reentrant=False)


@pytest.mark.parametrize("compiled_first", [False, True])
def test_flex_called_eagerly_in_a_checkpointed_region(struck: Worker, compiled_first: bool) -> None:
    """In the forward, or on autograd's own thread: the stance refuses both."""
    struck.trainer.attention = Recomputed(struck.flex, compiled_first=compiled_first)
    with pytest.raises(RuntimeError, match="fail_on_recompile"):
        struck.order(BUCKETS[0])
    assert struck.watch.dense_calls == 0


def test_a_dense_backward_on_autograds_thread(struck: Worker) -> None:
    """Without the stance the tripwire refuses it there too, and it stays on record."""
    struck.trainer.attention = Recomputed(struck.flex, compiled_first=True)
    torch.compiler.set_stance("default")
    dense = struck.watch.dense_calls
    with pytest.raises(WorkerError, match="it ran dense"):
        struck.order(BUCKETS[0])
    assert struck.watch.dense_calls > dense
    for _ in range(2):
        with pytest.raises(WorkerError, match="compile contract"):
            struck.watch.check()


@contextlib.contextmanager
def started(directory: Path, **environment: str) -> Iterator[Host]:
    """A real worker process on the GPU, with what it needs of this one's environment."""
    passed = ("LD_", "CUDA", "NVIDIA", "HOME", "CC")
    kept = {name: value for name, value in os.environ.items() if name.startswith(passed)}
    kept["PYTHONPATH"] = os.pathsep.join([str(PYTHON), os.environ.get("PYTHONPATH", "")])
    with running(directory, environment={**kept, **environment}) as host:
        yield host


def test_a_worker_whose_environment_switches_the_compiler_off(worker: Worker, tmp_path: Path) -> None:
    """No drafter is built there, and the reason names the variable."""
    with started(tmp_path, TORCH_COMPILE_DISABLE="1") as host, pytest.raises(grpc.RpcError) as refused:
        host.control.Configure(message(worker.directory), timeout=DEADLINE_S)
    assert "want a compiler, got one that is switched off" in refused.value.details()


def graph_files(cache: Path) -> list[Path]:
    """One file a compiled graph."""
    found = [f for part in ("fxgraph", "aotautograd") for f in (cache / part).rglob("*") if f.is_file()]
    assert found
    return found


def cut_short(files: Iterable[Path]) -> None:
    """As after a full disk."""
    for file in files:
        os.truncate(file, file.stat().st_size // 2)


@pytest.fixture(scope="module")
def first(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache that a first worker process has filled; this process compiles under other settings."""
    directory = tmp_path_factory.mktemp("first")
    kept = directory / "cache"
    with started(directory, TORCHINDUCTOR_CACHE_DIR=str(kept)) as host:
        host.control.Configure(message(worker.directory), timeout=DEADLINE_S)
        replies = list(host.control.WarmUp(worker_pb2.WarmUpRequest(), timeout=DEADLINE_S))
    certificate = replies[-1].certificate
    print(certificate)  # noqa: T201
    assert certificate.cache == "cold"
    assert certificate.cache_hits < certificate.cache_misses  # graphs of one run may be equal
    return kept


@pytest.mark.parametrize("cache", ["whole", "truncated", "foreign", "stale"])
def test_another_worker_is_warm_from_a_whole_cache_and_cold_from_any_other(
    worker: Worker, first: Path, tmp_path: Path, cache: str
) -> None:
    """It finds the first one's kernels; it makes them where it cannot read them, or they are of others.

    Foreign: written by a program whose classes are not here. Stale: of other kernel options.
    """
    kept, asked = tmp_path / "cache", message(worker.directory)
    shutil.copytree(first, kept)
    if cache == "whole":
        kept = first
    elif cache == "truncated":
        cut_short(graph_files(kept))
    elif cache == "foreign":
        for file in graph_files(kept):
            file.write_bytes(b"cno_such_module\nThing\n.")
    elif cache == "stale":
        asked.flex.warps = 4
    with started(tmp_path, TORCHINDUCTOR_CACHE_DIR=str(kept)) as host:
        host.control.Configure(asked, timeout=DEADLINE_S)
        replies = list(host.control.WarmUp(worker_pb2.WarmUpRequest(), timeout=DEADLINE_S))
    certificate = replies[-1].certificate
    print(certificate)  # noqa: T201
    assert certificate.cache == ("warm" if cache == "whole" else "cold")
    assert (certificate.cache_misses > 0) is (cache != "whole")
    assert (certificate.dense_calls, certificate.second_pass_compiles) == (0, 0)
    operations = 2 + 2 + 1 + 1 + 1 + 2  # heads, sums, norm, gate, loss, updates of matrices and of norms
    assert certificate.graphs == operations + 3 * len(BUCKETS) + 1  # and the oracle's attention
    assert certificate.digest_before == certificate.digest_after
    assert (certificate.fingerprint == worker.certificate.fingerprint) is (cache != "stale")


def test_a_worker_whose_cached_code_is_cut_short_gets_no_certificate(
    worker: Worker, first: Path, tmp_path: Path
) -> None:
    """The compiler trusts code that it finds under its name, so the warm-up fails, with the file's name.

    Whoever owns the cache has to put it away before it lets the next one in.
    """
    kept = tmp_path / "cache"
    shutil.copytree(first, kept)
    cut_short(kept.rglob("*.py"))
    with started(tmp_path, TORCHINDUCTOR_CACHE_DIR=str(kept)) as host:
        host.control.Configure(message(worker.directory), timeout=DEADLINE_S)
        with pytest.raises(grpc.RpcError) as refused:
            list(host.control.WarmUp(worker_pb2.WarmUpRequest(), timeout=DEADLINE_S))
    assert "call compiled " in refused.value.details()
    assert str(kept) in refused.value.details()
