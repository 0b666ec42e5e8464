"""What a target worker measures of a drafter: decoding, plain decoding, held-out loss."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dflash_runner import anchors, decode, devices, head, image, log, loss
from dflash_runner.attention import Dense
from dflash_runner.building import drafter_config
from dflash_runner.config import Configuration
from dflash_runner.data import Dataset, read_prompts
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.frames import Piece, Prompt
from dflash_runner.frozen import FrozenTarget
from dflash_runner.model import Drafter
from dflash_runner.orders import Evaluate
from dflash_runner.packing import pack
from dflash_runner.replies import Evaluated
from dflash_runner.serving import ServingDrafter
from dflash_runner.trainer import DTYPES, score

_HELDOUT_EPOCH = 0  # of the anchors' draw: always the same places, so that losses compare


class Evaluator:
    """Keeps the drafter that it was last given, and the texts, so that both ways are compared."""

    def __init__(self, target: FrozenTarget, *, configuration: Configuration) -> None:
        """Open prompts and held-out data where the configuration names them."""
        self._target = target
        self._configuration = configuration
        self._config = drafter_config(configuration.drafter, configuration.target)
        self._dtype = DTYPES[configuration.training.compute_dtype]
        self._prompts = read_prompts(configuration.prompts) if configuration.prompts else None
        self._heldout = Dataset.open(configuration.heldout_data) if configuration.heldout_data else None
        self._frozen: head.FrozenHead | None = None
        self._drafter: Drafter | None = None
        self._step: int | None = None
        self._texts: dict[tuple[str, int, int], tuple[int, ...]] = {}
        # On a CPU, time of this process alone: both ways of decoding are compared under whatever load
        # the machine has when each is run.
        self._clock = time.process_time if target.device.type == "cpu" else time.perf_counter

    def evaluate(self, order: Evaluate, *, fd: int | None) -> Evaluated:
        """What the order asks for.

        Args:
            order: its range within prompts or samples.
            fd: the image of the drafter to use from now on, where `nbytes` > 0.

        Raises:
            WorkerError: invalid, where there is no drafter, no such range, or no such image.

        Source: proto/lane.md `evaluate`.
        """
        if fd is not None:
            self._load(order, fd)
        if order.what == "loss":
            return self._loss(order)
        return self._decode(order)

    def _load(self, order: Evaluate, fd: int) -> None:
        """Take the drafter from an image."""
        found, masters = image.read_masters(fd, nbytes=order.nbytes)
        if found.step != order.step:
            raise WorkerError(
                Kind.INVALID, f"evaluate step {order.step}: want its image, got that of step {found.step}"
            )
        with torch.device("meta"):  # weights are not drawn to be thrown away
            drafter = Drafter(self._config)
        want = {name: tensor.shape for name, tensor in drafter.state_dict().items()}
        if want != {name: tensor.shape for name, tensor in masters.items()}:
            raise WorkerError(
                Kind.INVALID, f"evaluate step {order.step}: the image is of a drafter of another shape"
            )
        drafter.load_state_dict(masters, assign=True)
        drafter = drafter.to(device=self._target.device, dtype=self._dtype)
        self._drafter, self._step = drafter.eval().requires_grad_(False), found.step
        self._texts = {key: text for key, text in self._texts.items() if key[0] == "plain"}

    def _ready(self, order: Evaluate) -> tuple[Drafter, head.FrozenHead]:
        """The drafter that the order means, and the head it borrows."""
        if self._drafter is None or self._step != order.step:
            raise WorkerError(
                Kind.INVALID, f"evaluate {order.what}: want a drafter of step {order.step}, got {self._step}"
            )
        if self._frozen is None:
            self._frozen = self._head()
        return self._drafter, self._frozen

    def _head(self) -> head.FrozenHead:
        """The target's own embedding and head where it holds them in the drafter's dtype, else a copy."""
        if not self._target.cut and self._target.dtype == self._dtype:
            return head.of_model(self._target.model)
        directory = Path(self._configuration.target.directory)
        return head.load(directory, dtype=self._dtype, device=self._target.device)

    def _decode(self, order: Evaluate) -> Evaluated:
        """Decode prompts one by one, speculatively or plainly."""
        prompts_PT = self._range(self._prompts, order, "prompts")
        if order.new_tokens < 1:
            raise WorkerError(Kind.INVALID, f"evaluate {order.what}: new_tokens: want at least 1, got 0")
        run = self._runner(order)
        results = [self._prompt(order, number, run) for number in range(len(prompts_PT))]
        return Evaluated(
            seq=order.seq,
            step=order.step,
            what=order.what,
            tokens=sum(prompt.tokens for prompt in results),
            forwards=sum(prompt.forwards for prompt in results),
            busy_us=sum(prompt.busy_us for prompt in results),
            lossless=all(prompt.equal for prompt in results),
            numerator=0.0,
            denominator=0.0,
            prompts=results,
        )

    def _runner(self, order: Evaluate) -> Callable[[Tensor], decode.Decoded]:
        """Decodes one prompt in the way that the order asks for."""
        model, count = self._target.model, order.new_tokens
        if order.what == "plain":
            return lambda prompt_T: decode.plain(model, prompt_P=prompt_T, new_tokens=count)
        drafter, frozen = self._ready(order)
        serving = ServingDrafter(drafter, head=frozen)
        return lambda prompt_T: decode.speculative(
            model, drafter=serving, prompt_P=prompt_T, new_tokens=count
        )

    def _prompt(self, order: Evaluate, place: int, run: Callable[[Tensor], decode.Decoded]) -> Prompt:
        """One prompt's figures; tokens are those that forwards gained, so tokens / forwards is tau."""
        if self._prompts is None:
            raise AssertionError("the range was checked")
        number = order.first + place
        prompt_T = torch.from_numpy(np.array(self._prompts[number])).long().to(self._target.device)
        devices.settle(self._target.device)
        start = self._clock()
        decoded = run(prompt_T)
        devices.settle(self._target.device)
        busy_us = int((self._clock() - start) * 1e6)
        count = order.new_tokens
        self._texts[order.what, number, count] = decoded.tokens
        other = "decode" if order.what == "plain" else "plain"
        return Prompt(
            tokens=sum(decoded.accepted),
            forwards=decoded.forwards,
            looping=decode.looping(decoded.tokens),
            equal=self._is_equal(number, prompt_T, decoded.tokens, self._texts.get((other, number, count))),
            busy_us=busy_us,
        )

    def _is_equal(
        self, number: int, prompt_T: Tensor, one: tuple[int, ...], other: tuple[int, ...] | None
    ) -> bool:
        """Whether both ways gave the same text; on a GPU, or texts that part where rounding decides."""
        if other is None or one == other or self._target.device.type == "cpu":
            return one == other
        parting = decode.parting(self._target.model, prompt_P=prompt_T, one=one, other=other)
        if parting is None:
            raise AssertionError("the texts differ")
        tie = parting.is_tie(self._target.dtype)
        tell = log.info if tie else log.warn
        tell("texts part", prompt=number, place=parting.place, gap=parting.gap, tie=tie)
        return tie

    @torch.inference_mode()
    def _loss(self, order: Evaluate) -> Evaluated:
        """Teacher-forced loss over held-out samples, each alone in its row, at fixed anchors."""
        start = self._clock()
        data = self._heldout
        lengths = self._range(None if data is None else data.tokens, order, "held-out samples")
        numerator = denominator = 0.0
        for number in range(order.first, order.first + len(lengths)):
            top, bottom = self._score(order, data, number)
            numerator, denominator = numerator + top, denominator + bottom
        return Evaluated(
            seq=order.seq,
            step=order.step,
            what=order.what,
            tokens=int(lengths.sum()),
            forwards=len(lengths),
            busy_us=int((self._clock() - start) * 1e6),
            lossless=False,
            numerator=numerator,
            denominator=denominator,
            prompts=[],
        )

    def _score(self, order: Evaluate, data: Dataset, number: int) -> tuple[float, float]:
        """One held-out sample's loss numerator and weight."""
        drafter, frozen = self._ready(order)
        length, settings = int(data.tokens[number]), self._configuration.training
        count = min(int(data.anchors[number]), settings.anchors)
        piece = Piece(number, 0, 0, length, count)
        row = pack(data, pieces=[piece], bucket=length)
        chosen = anchors.draw(
            row.loss_mask_S,
            pieces=[piece],
            seed=self._configuration.seed,
            epoch=_HELDOUT_EPOCH,
            places=settings.anchors,
        )
        row = row.to(self._target.device)
        rows = loss.Rows(
            hidden_BSC=self._target.own_hidden_states(row)[None].to(self._dtype),
            tokens_BS=row.tokens_S[None].long(),
            loss_mask_BS=row.loss_mask_S[None].bool(),
            documents_BS=row.documents_S[None].long(),
            anchors_BN=devices.send(chosen.anchors_N[None], self._target.device),
            keep_BN=devices.send(chosen.keep_N[None], self._target.device),
        )
        config = drafter.config
        blocks = loss.blocks(
            rows, block_size=config.block_size, mask_token_id=config.mask_token_id, gamma=settings.gamma
        )
        terms = score(
            drafter,
            hidden_BSC=rows.hidden_BSC,
            blocks=blocks,
            frozen=frozen,
            over=Dense(dtype=self._dtype).over,
        )
        return float(terms.numerator_B.sum()), float(terms.denominator_B.sum())

    def _range(self, of: np.ndarray | None, order: Evaluate, what: str) -> np.ndarray:
        """The part of prompts or samples that the order names."""
        have = 0 if of is None else len(of)
        if of is None or order.first + order.count > have:
            raise WorkerError(
                Kind.INVALID,
                f"evaluate {order.what}: want {what} {order.first} to {order.first + order.count - 1}, "
                f"got {have} of them",
            )
        return of[order.first : order.first + order.count]
