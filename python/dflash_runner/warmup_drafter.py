"""What of a drafter is warmed up: a whole optimiser step per bucket, and its attention against loops."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_runner import devices, oracle
from dflash_runner.attention import Rule
from dflash_runner.communicator import Communicator
from dflash_runner.config import FP8, PRECISIONS, Configuration
from dflash_runner.fold import fold
from dflash_runner.frames import Piece
from dflash_runner.trainer import DTYPES, Trainer
from dflash_runner.warmup import Difference, Ran
from dflash_runner.watch import AttentionCalls, Calls, CompiledCalls

_LEARNING_RATE = 1e-3  # any that moves the parameters: they are restored
_TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 5e-2}
_ORACLE_TOKENS, _ORACLE_QUERIES = 384, 256  # of compiled attention: three tiles of context, two of noise


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    """A row to compare at."""

    anchors: list[int]
    keep: list[bool]
    documents: list[int]
    block_size: int

    def rule(self, device: torch.device) -> Rule:
        """As the attention takes it."""
        return Rule(
            anchors_BN=torch.tensor([self.anchors], device=device),
            keep_BN=torch.tensor([self.keep], device=device),
            documents_BS=torch.tensor([self.documents], device=device),
            block_size=self.block_size,
        )

    def visible(self) -> Tensor:
        """As loops find it, bool [Q,X]."""
        queries = len(self.anchors) * self.block_size
        visible_QX = torch.zeros(queries, len(self.documents) + queries, dtype=torch.bool)
        for query in range(queries):
            keys = oracle.visible_keys(
                query,
                anchors=self.anchors,
                keep=self.keep,
                documents=self.documents,
                block_size=self.block_size,
            )
            visible_QX[query, keys] = True
        return visible_QX


class DrafterSubject:
    """A trainer as warm-up sees it."""

    def __init__(self, trainer: Trainer, *, configuration: Configuration) -> None:
        """Keep the trainer, which is not to be used for anything else meanwhile."""
        self._trainer = trainer
        self._configuration = configuration

    def run(self, bucket: int) -> Ran:
        """One row of two documents and padding, with padding anchors: a step from row to update."""
        before = self._contents()
        tensors, pieces = self._row(bucket)
        prepared = self._trainer.prepare(tensors, epoch=0, pieces=pieces)
        start = time.perf_counter()
        anchors = self._trainer.micro_step(prepared, row=1)
        alone = Communicator("", number=1, world=1, rank=0)  # no peer is ready yet: the sum is the own one
        figures = self._trainer.reduce(alone)
        self._trainer.apply(lr=_LEARNING_RATE)
        devices.settle(self._trainer.device)
        step_ms = (time.perf_counter() - start) * 1000
        moved = self._contents() != before
        return Ran(
            gradients=figures.finite and figures.norm > 0 and moved,
            padded_anchors=0 < anchors < self._configuration.training.anchors,
            step_ms=step_ms,
        )

    def record(self, bucket: int) -> None:
        """Record the micro-step, where that is asked for, and replay it as a step's first row and as a later
        one; where peers will sum in the backward, that way once more too."""
        trainer = self._trainer
        if not trainer.records:
            return
        tensors, pieces = self._row(bucket)
        prepared = trainer.prepare(tensors, epoch=0, pieces=pieces)
        trainer.record(prepared)
        for row in (1, 2):  # first and later
            trainer.micro_step(prepared, row=row)
        trainer.drop()
        if self._configuration.world_size > 1:
            trainer.micro_step_unrecorded(prepared, row=1)
            trainer.drop()
        trainer.settle()

    def held_bytes(self) -> int:
        """Of the recordings, where peers make a drafter compute without them as well."""
        return self._trainer.recorded_bytes if self._configuration.world_size > 1 else 0

    @property
    def precision(self) -> str:
        """Of the trainer's products, as it was built."""
        return PRECISIONS[0] if self._trainer.products is None else FP8

    def products(self) -> tuple[int, int]:
        """Those in fp8, of layers and of the head."""
        made = self._trainer.products
        return (0, 0) if made is None else (made.linears.calls, made.heads.calls)

    def calls(self, *, named: bool) -> Calls:
        """Counts the trainer's attention."""
        counter = self._trainer.attention.counter
        if counter is None:
            return AttentionCalls()
        return CompiledCalls(counter, device=self._trainer.device.type, named=named)

    def oracle(self) -> Difference:
        """The attention and its gradients at a small shape, against dense float64.

        Documents, padding tokens and a padding anchor are among it. The visible keys are found by
        loops. The difference is in units of the largest value, where that is above 1.
        """
        case = self._oracle_case()
        config, dtype, device = self._trainer.config, self._trainer.dtype, self._trainer.device
        generator = torch.Generator().manual_seed(0)
        queries, tokens = len(case.anchors) * case.block_size, len(case.documents)
        shapes = [(config.heads, queries)] + 2 * [(config.kv_heads, tokens + queries)]
        drawn = [
            torch.randn(1, length, heads, config.head_dim, generator=generator)
            .to(device, dtype)
            .transpose(1, 2)  # a token's heads side by side, as the drafter has them
            .requires_grad_()
            for heads, length in shapes
        ]
        exact = [tensor.detach()[0].double().requires_grad_() for tensor in drawn]
        got = self._trainer.attention.over(case.rule(device))(*drawn)
        want = oracle.attend(*exact, visible_QX=case.visible().to(device))
        seed = torch.randn(want.shape, generator=generator).to(device, dtype)
        got.backward(seed[None])
        want.backward(seed.double())
        pairs = [(got[0], want), *((a.grad[0], b.grad) for a, b in zip(drawn, exact, strict=True))]
        scale = max(1.0, *(float(exact.detach().abs().max()) for _, exact in pairs))
        largest = max(float((a.detach().double() - b.detach()).abs().max()) for a, b in pairs)
        return Difference(largest=largest / scale, tolerance=_TOLERANCE[dtype])

    def _oracle_case(self) -> _Case:
        """A row small enough for loops; for compiled kernels, of several tiles and the real block."""
        if self._trainer.attention.counter is None:
            return _Case(
                anchors=[2, 3, 7, 7],
                keep=[True, True, True, False],
                documents=[0] * 5 + [1] * 5 + [-1] * 2,
                block_size=3,
            )
        size = self._trainer.config.block_size
        places = -(-_ORACLE_QUERIES // size)
        tokens = _ORACLE_TOKENS + self._configuration.training.buckets[0] % 128
        first, used = tokens // 3, tokens - 20
        spread = [1 + place * (used - 2) // (places - 1) for place in range(places - 1)]
        return _Case(
            anchors=[*spread, spread[-1]],
            keep=[True] * (places - 1) + [False],
            documents=[0] * first + [1] * (used - first) + [-1] * (tokens - used),
            block_size=size,
        )

    def state(self) -> Mapping[str, Tensor]:
        """Masters, moments and the optimiser's count."""
        return self._trainer.optimiser.state_tensors()

    def changing(self) -> Mapping[str, Tensor]:
        """All of it: a step moves every master and moment."""
        return self.state()

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Put them back, and drop whatever gradient there is."""
        self._trainer.optimiser.load_state_tensors(saved)
        self._trainer.drop()

    def shapes(self) -> Mapping[str, object]:
        """The drafter's configuration."""
        config = self._trainer.config
        names = ("layers", "hidden_size", "intermediate_size", "heads", "kv_heads", "head_dim", "vocab_size")
        shape = {name: getattr(config, name) for name in names}
        shape |= {} if self._trainer.products is None else {"precision": FP8}
        return {**shape, "block_size": config.block_size, "captured": list(config.target_layer_ids)}

    def _contents(self) -> list[list[int]]:
        """What the masters hold, folded where they are."""
        return [fold(master).tolist() for master in self._trainer.optimiser.masters().values()]

    def _row(self, bucket: int) -> tuple[dict[str, Tensor], list[Piece]]:
        """A row of two documents with a stretch of padding, and one anchor place left over.

        A row with as many places as valid anchors leaves none over; then fewer anchors are drawn.
        """
        config, places = self._trainer.config, self._configuration.training.anchors
        generator = torch.Generator().manual_seed(bucket)
        used = bucket - max(1, bucket // 8)
        first = max(2, used // 2)
        lengths = [first, used - first] if used - first >= 2 else [used]
        documents = torch.full((bucket,), -1, dtype=torch.int32)
        pieces, start, left = [], 0, max(1, places - 1)
        for document, length in enumerate(lengths):
            documents[start : start + length] = document
            count = min(length - 1, left if document == len(lengths) - 1 else left // 2)
            pieces.append(Piece(document, 0, start, length, count))
            start, left = start + length, left - count
        width = len(config.target_layer_ids) * config.hidden_size
        dtype, device = DTYPES[self._configuration.target.dtype], self._trainer.device
        many = generator if device.type == "cpu" else torch.Generator(device).manual_seed(bucket)
        tensors = {
            "hidden": torch.randn(bucket, width, generator=many, device=device).to(dtype),
            "tokens": torch.randint(config.vocab_size, (bucket,), generator=generator, dtype=torch.int32),
            "loss_mask": (documents >= 0).to(torch.uint8),
            "documents": documents,
        }
        return tensors, pieces
