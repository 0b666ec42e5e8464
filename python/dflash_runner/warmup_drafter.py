"""What of a drafter is warmed up: a whole optimiser step per bucket, and its attention against loops."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dflash_runner import oracle
from dflash_runner.attention import Rule, sdpa
from dflash_runner.communicator import Communicator
from dflash_runner.config import Configuration
from dflash_runner.frames import Piece
from dflash_runner.trainer import DTYPES, Trainer
from dflash_runner.warmup import Difference, Ran

_LEARNING_RATE = 1e-3  # any that moves the parameters: they are restored
_TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 5e-2}
_ORACLE_TOKENS, _ORACLE_BLOCK = 12, 3


class DrafterSubject:
    """A trainer as warm-up sees it."""

    def __init__(self, trainer: Trainer, *, configuration: Configuration) -> None:
        """Keep the trainer, which is not to be used for anything else meanwhile."""
        self._trainer = trainer
        self._configuration = configuration

    def run(self, bucket: int) -> Ran:
        """One row of two documents and padding, with padding anchors: a step from row to update."""
        before = self._trainer.parameters_digest()
        tensors, pieces = self._row(bucket)
        anchors = self._trainer.micro_step(tensors, row=1, epoch=0, pieces=pieces)
        alone = Communicator("", number=1, world=1, rank=0)  # no peer is ready yet: the sum is the own one
        figures = self._trainer.reduce(alone)
        self._trainer.apply(lr=_LEARNING_RATE)
        moved = self._trainer.parameters_digest() != before
        return Ran(
            gradients=figures.finite and figures.norm > 0 and moved,
            padded_anchors=0 < anchors < self._configuration.training.anchors,
        )

    def oracle(self) -> Difference:
        """The attention and its gradients at a small shape, against loops in float64.

        Documents, padding tokens and a padding anchor are among it.
        """
        config, dtype = self._trainer.config, self._trainer.dtype
        documents, anchors, keep = [0] * 5 + [1] * 5 + [-1] * 2, [2, 3, 7, 7], [True, True, True, False]
        rule = Rule(
            anchors_BN=torch.tensor([anchors]),
            keep_BN=torch.tensor([keep]),
            documents_BS=torch.tensor([documents]),
            block_size=_ORACLE_BLOCK,
        )
        generator = torch.Generator().manual_seed(0)
        queries = len(anchors) * _ORACLE_BLOCK
        shapes = [(config.heads, queries)] + 2 * [(config.kv_heads, _ORACLE_TOKENS + queries)]
        drawn = [
            torch.randn(1, *shape, config.head_dim, generator=generator).to(dtype).requires_grad_()
            for shape in shapes
        ]
        exact = [tensor.detach()[0].double().requires_grad_() for tensor in drawn]
        visible = [
            oracle.visible_keys(
                query, anchors=anchors, keep=keep, documents=documents, block_size=_ORACLE_BLOCK
            )
            for query in range(queries)
        ]
        got = sdpa(rule, dtype=dtype)(*drawn)
        want = oracle.attend(*exact, visible=visible)
        seed = torch.randn(want.shape, generator=generator)
        got.backward(seed[None].to(dtype))
        want.backward(seed.to(dtype).double())
        pairs = [(got[0], want), *((a.grad[0], b.grad) for a, b in zip(drawn, exact, strict=True))]
        largest = max(float((a.detach().double() - b.detach()).abs().max()) for a, b in pairs)
        return Difference(largest=largest, tolerance=_TOLERANCE[dtype])

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
        return {**shape, "block_size": config.block_size, "captured": list(config.target_layer_ids)}

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
        dtype = DTYPES[self._configuration.target.dtype]
        tensors = {
            "hidden": torch.randn(bucket, width, generator=generator).to(dtype),
            "tokens": torch.randint(config.vocab_size, (bucket,), generator=generator, dtype=torch.int32),
            "loss_mask": (documents >= 0).to(torch.uint8),
            "documents": documents,
        }
        return tensors, pieces
