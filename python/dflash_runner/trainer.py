"""The drafter's compute: micro-steps, the sum, the vote's figures, the update.

Everything here but `Trainer.prepare` runs on the main thread. Warm-up and training call the same functions.

Shapes: S tokens of the row, C = L*D captured width, N anchor places.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dflash_runner import building, devices, head, image, loss
from dflash_runner.attention import Attention, Over
from dflash_runner.communicator import Communicator
from dflash_runner.compiled import Backend, Compiled
from dflash_runner.config import Configuration
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.figures import Figures, rows_of
from dflash_runner.frames import Piece
from dflash_runner.model import Drafter
from dflash_runner.operations import PLAIN, Operations
from dflash_runner.optim import AdamWConfig, Optimiser
from dflash_runner.preparation import Preparation, Prepared
from dflash_runner.replay import Counter, CudaRecorder, Recorder, Replays

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_PARTS = ("master.", "exp_avg.", "exp_avg_sq.")


class Trainer:
    """A drafter with its optimiser, and one open step."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        attention: Attention | None = None,
        operations: Operations | None = None,
        recorder: Recorder | None = None,
        backend: Backend | None = None,
    ) -> None:
        """Build the model from the seed or an exported drafter, its optimiser and the frozen head.

        Args:
            configuration: of a drafter.
            attention: another than the configured one, in tests.
            operations: others than those that go with the configured attention, likewise.
            recorder: of micro-steps, another than the configured one, likewise.
            backend: of the compiler of products in fp8, another than the one that goes with the configured
                attention, likewise.

        Raises:
            WorkerError: the target's or the exported drafter's directory does not fit.
        """
        settings = configuration.training
        self._settings = settings
        self.config = building.drafter_config(configuration.drafter, configuration.target)
        self.dtype, self.device = DTYPES[settings.compute_dtype], torch.device(configuration.device)
        self.attention = attention or building.attention(configuration, self.dtype)
        self.operations = operations or building.operations(configuration)
        self._head = head.load(Path(configuration.target.directory), dtype=self.dtype, device=self.device)
        building.check_head(self._head, self.config)
        drafter = building.initial(self.config, configuration)
        exact = {name: p.detach() for name, p in drafter.named_parameters()}  # those drawn, on the host
        self._drafter = drafter.to(device=self.device, dtype=self.dtype)
        self.products = building.products(
            configuration, self._drafter, frozen=self._head, by=self.operations, backend=backend
        )
        if self.products is not None:
            self.operations = self.products.operations
        self.optimiser = self._optimiser_of(configuration, exact)
        self._losses: list[tuple[int, Tensor, Tensor]] = []
        self._preparation = self._preparation_of(configuration)
        self._alone = configuration.world_size == 1
        of_a_step = settings.rows_per_step * settings.draws_per_row // configuration.world_size
        self._repeats = self._alone or of_a_step > 1
        if recorder is None and configuration.flex.replay and self.device.type == "cuda":
            recorder = CudaRecorder(self.device)
        self._replays = self._replays_of(recorder)

    def _optimiser_of(self, configuration: Configuration, exact: Mapping[str, Tensor]) -> Optimiser:
        """Over the drafter, its masters with the values that were drawn."""
        settings = self._settings
        compiles = configuration.attention != "sdpa" and self.device.type == "cuda"
        optimiser = Optimiser(
            self._drafter,
            config=AdamWConfig(
                beta1=settings.beta1,
                beta2=settings.beta2,
                epsilon=settings.epsilon,
                weight_decay=settings.weight_decay,
            ),
            backend="inductor" if compiles and self.dtype != torch.float32 else None,
        )
        for name, master in optimiser.masters().items():
            master.copy_(exact[name])  # a compute dtype below float32 must not round the masters
        return optimiser

    def _preparation_of(self, configuration: Configuration) -> Preparation:
        """Of rows, for this drafter."""
        settings = self._settings
        return Preparation(
            config=self.config,
            seed=configuration.seed,
            places=settings.anchors,
            draws=settings.draws_per_row,
            gamma=settings.gamma,
            longest=settings.buckets[-1],
            dtype=self.dtype,
            device=self.device,
        )

    def _replays_of(self, recorder: Recorder | None) -> Replays | None:
        """None where micro-steps are not replayed; so too where peers sum in each, a step's only one."""
        if recorder is None or self.attention.counter is None or not self._repeats:
            return None
        compiled = (getattr(self.operations, field.name) for field in dataclasses.fields(self.operations))
        checks = [operation.check for operation in compiled if isinstance(operation, Compiled)]
        counters: list[Counter] = [self.attention.counter]
        if self.products is not None:
            checks += self.products.checks
            counters += [self.products.linears, self.products.heads]
        return Replays(recorder, checks=[self.attention.check, *checks], counters=counters)

    @property
    def attention_layers(self) -> int:
        """Attention calls of one micro-step."""
        return self.config.layers

    @property
    def draws(self) -> int:
        """Draws of anchors from one row, each a micro-step's forward and backward."""
        return self._settings.draws_per_row

    def prepare(
        self, tensors: Mapping[str, Tensor], *, epoch: int, pieces: Sequence[Piece], draw: int = 0
    ) -> Prepared:
        """What a micro-step needs of a complete row, but for weights; on any thread, one at a time.

        Args:
            tensors: `hidden`, `tokens`, `loss_mask`, `documents` of the row; they stay as they are until
                the micro-step is done.
            epoch: with the pieces, decides the anchors.
            pieces: of the row, in order.
            draw: which of the row's, below `draws`.

        Raises:
            WorkerError: invalid, where pieces and loss mask do not fit.
        """
        tiles = self.attention.counter is not None  # compiled
        return self._preparation.prepare(tensors, epoch=epoch, pieces=pieces, draw=draw, tiles=tiles)

    def micro_step(
        self,
        prepared: Prepared,
        *,
        row: int,
        poison: bool = False,
        communicator: Communicator | None = None,
    ) -> int:
        """How many anchors the row had in this draw, its loss and gradient being added to the open step.

        On a device everything is queued and nothing waited for: `settle` does that.

        Args:
            prepared: the row, as `prepare` gives it.
            row: its number; the draws of a row follow each other.
            poison: make the loss not a number, on purpose.
            communicator: where this is the step's last one: what of the gradient is complete may be summed
                while the rest is computed; `reduce` must follow.

        Raises:
            WorkerError: unavailable, where a peer is gone.

        Source: README, How it works (the loss is divided by the constant W0 before the backward).
        Compile: S and N are static.
        """
        prepared.wait()
        self._follow()
        summed = communicator is not None and not self._alone  # while the backward goes on: not recorded
        if self._replays is not None and self._replays.holds(prepared) and not (summed or poison):
            first = self.optimiser.begins()
            numerator, denominator = self._replays.run(prepared, first=first)
            self.optimiser.took(first=first)
        else:
            numerator, denominator = self._computed(prepared, poison=poison, communicator=communicator)
        self._losses.append((row, numerator, denominator))
        return prepared.anchors

    def micro_step_unrecorded(self, prepared: Prepared, *, row: int) -> None:
        """`micro_step` as the step's last one is done where peers sum in it, but for the sum: in warm-up."""
        prepared.wait()
        self._follow()
        self._losses.append((row, *self._computed(prepared)))

    def _computed(
        self, prepared: Prepared, *, poison: bool = False, communicator: Communicator | None = None
    ) -> tuple[Tensor, Tensor]:
        """A row's (numerator, denominator), its gradient being added as it comes."""
        numerator, denominator = self._forward(prepared)
        if poison:
            numerator = numerator * math.nan
        if communicator is not None:
            self.optimiser.sum_as_it_comes(communicator)
        (numerator / self._settings.weight_constant).backward()
        with torch.no_grad():
            self.optimiser.weight.add_(denominator)
        return numerator.detach(), denominator

    def _forward(self, prepared: Prepared) -> tuple[Tensor, Tensor]:
        """A row's loss as (numerator, denominator)."""
        terms = score(
            self._drafter,
            hidden_BSC=prepared.hidden_SC[None].to(self.device, self.dtype),
            blocks=prepared.blocks,
            frozen=self._head,
            over=self.attention.over,
            by=self.operations,
        )
        return terms.numerator_B.sum(), terms.denominator_B.sum()

    @property
    def records(self) -> bool:
        """Whether micro-steps are to be recorded and replayed."""
        return self._replays is not None

    @property
    def recorded_bytes(self) -> int:
        """Of the device, by the activations of what was recorded."""
        return 0 if self._replays is None else self._replays.held_bytes

    def record(self, prepared: Prepared) -> None:
        """From now on replay the micro-steps of this row's bucket, but for those whose sum begins in the
        backward; the open step, which must be empty, stays so.

        Args:
            prepared: a row that went through `micro_step` before.

        Raises:
            WorkerError: fatal, where a compiled function has refused a call; exhausted, where the device has
                no room for it.
        """
        if self._replays is None or self._losses:
            raise AssertionError("record micro-step: want a trainer that records, and no open step")
        prepared.wait()
        self._follow()  # outside of the recording, which reads what this writes
        try:
            self._replays.record(prepared, self._step)
        except torch.OutOfMemoryError as err:
            raise WorkerError(
                Kind.EXHAUSTED,
                f"record micro-step of {len(prepared.hidden_SC)} tokens: {err}",
                hint="fewer training.anchors, a shorter bucket, or drafter.flex.replay: false",
            ) from err

    def _step(self, prepared: Prepared, first: bool) -> tuple[Tensor, Tensor]:
        """What is recorded: the same as `micro_step` does, with its gradients taken all at once."""
        numerator, denominator = self._forward(prepared)
        loss = numerator / self._settings.weight_constant
        gradients = torch.autograd.grad(loss, self.optimiser.parameters())
        self.optimiser.take(gradients, first=first)
        with torch.no_grad():
            self.optimiser.weight.add_(denominator)
        return numerator.detach(), denominator

    def reduce(self, communicator: Communicator) -> Figures:
        """The step's figures, its gradient summed over the ranks, rescaled and clipped; waits for the device.

        Args:
            communicator: open; of one rank where there is one drafter.

        Raises:
            WorkerError: unavailable, where a peer is gone: the gradient is then undefined.

        Source: README, How it works: one sum of gradients and weight, times W0 / weight, norm, clip.
        """
        with torch.no_grad():
            self.optimiser.sum(communicator)
            self.optimiser.rescale(self._settings.weight_constant)
            norm = self.optimiser.global_norm()
            self.optimiser.clip(norm, limit=self._settings.clip_norm)
        told = [figure for _, *own in self._losses for figure in own]
        *own, weight, norm_ = torch.stack([*told, self.optimiser.weight, norm]).tolist()
        draws = zip((row for row, *_ in self._losses), own[::2], own[1::2], strict=True)
        return Figures(rows=rows_of(draws), weight=weight, norm=norm_)

    def apply(self, *, lr: float) -> None:
        """Apply the reduced gradient and close the step; on a device that is queued."""
        self.optimiser.step(lr=lr)
        self.drop()
        self._follow()

    def _follow(self) -> None:
        """Round the weights for products in fp8, where an update or a load changed them: once a step."""
        if self.products is not None:
            self.products.follow(self.optimiser.changes)

    def settle(self) -> None:
        """Wait until the device has done all that was queued on it.

        Raises:
            Exception: of torch, for a fault of the device, which ends the process.
        """
        devices.settle(self.device)

    def is_clean(self) -> bool:
        """Whether the device still computes, its parameters can be read and are numbers, and nothing of an
        open step is left.

        Raises:
            Exception: of torch, where the device's context was broken, which ends the process.
        """
        if not devices.computes(self.device) or bool(self.optimiser.gradient_P.any()):
            return False
        if self.device.type == "cpu":
            return True
        return all(bool(master.isfinite().all()) for master in self.optimiser.masters().values())

    def drop(self) -> None:
        """Drop the open step's gradient and losses; of sums that were aborted half way, when the device has
        left them."""
        if self.optimiser.is_summing:
            self.settle()
        self.optimiser.clear()
        self._losses.clear()

    def state(self) -> image.State:
        """What an image holds: views of the masters and moments."""
        tensors = self.optimiser.state_tensors()

        def part(prefix: str) -> dict[str, Tensor]:
            return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}

        masters, exp_avg, exp_avg_sq = map(part, _PARTS)
        return image.State(masters=masters, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)

    def optimizer_step(self) -> int:
        """How often the optimiser was applied."""
        return int(self.optimiser.state_tensors()["step"])

    def loaded(self, *, optimizer_step: int) -> None:
        """The tensors of `state` were overwritten: take their values over, and drop the gradient."""
        tensors = self.optimiser.state_tensors()
        tensors["step"] = torch.tensor(optimizer_step, dtype=torch.int64)
        self.optimiser.load_state_tensors(tensors)
        self._losses.clear()

    def parameters_digest(self, *, pieces: image.Bytes | None = None) -> bytes:
        """SHA-256 of the masters.

        Args:
            pieces: the masters' bytes, where another thread than the main one asks.
        """
        return image.tensors_digest(self.optimiser.masters(), pieces=pieces)


def score(
    drafter: Drafter,
    *,
    hidden_BSC: Tensor,
    blocks: loss.Blocks,
    frozen: head.FrozenHead,
    over: Over,
    by: Operations = PLAIN,
) -> loss.RowTerms:
    """The loss terms of rows: the one call site of training, warm-up and held-out loss.

    Args:
        drafter: with gradients on or off.
        hidden_BSC: the rows' hidden states, in the drafter's dtype.
        blocks: of the same rows.
        frozen: the target's embedding and head.
        over: the attention.
        by: who computes the drafter's operations.

    Compile: all dimensions static.
    """
    return loss.terms(
        drafter, head=frozen, hidden_BSC=hidden_BSC, blocks=blocks, attend=over(blocks.rule), by=by
    )
