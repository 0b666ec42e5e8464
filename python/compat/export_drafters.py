"""Exports a drafter, right and wrong in many ways, and says what our own decoding makes of each.

Runs in the workers' environment: `export_drafters.py DIRECTORY`. Into DIRECTORY it writes `target`,
a folder for each drafter, `inputs.json` for `decode_public.py`, and `own.json` with the results.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from dflash_runner.decode import looping, speculative
from dflash_runner.errors import WorkerError
from dflash_runner.export import WEIGHTS, export, load_drafter
from dflash_runner.head import FrozenHead
from dflash_runner.head import load as load_head
from dflash_runner.model import Drafter
from dflash_runner.serving import ServingDrafter
from overfit import (
    BLOCK_SIZE,
    LAYER_IDS,
    NEW_TOKENS,
    PROMPTS,
    Texts,
    drafter_config,
    overfit,
    save_target,
    write_texts,
)
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

GOOD, ROUNDED, PREFIXED = "good", "bfloat16", "prefixed"

CHANGES: Mapping[str, Mapping[str, Any]] = {
    "ids-lower": {"dflash_config.target_layer_ids": [i - 1 for i in LAYER_IDS]},
    "ids-higher": {"dflash_config.target_layer_ids": [i + 1 for i in LAYER_IDS]},
    "mask-id": {"dflash_config.mask_token_id": 3},
    "rope-base": {"rope_theta": 1e6, "rope_parameters.rope_theta": 1e6},
    "causal": {"is_causal": True},
    "ids-missing": {"dflash_config.target_layer_ids": None},
    "block-size-missing": {"block_size": None, "dflash_config.block_size": None},
    "target-layers-missing": {"num_target_layers": None},
}
"""What is changed in config.json of each wrong drafter; None: removed."""

WRONG_PROMPTS = 4  # a wrong drafter gains little by round, so that fewer texts show as many rounds


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What our own loader and decoding make of one directory, by prompt."""

    refused: str = ""  # the loader's message; nothing is decoded then
    kind: str = ""  # of that error
    tokens: tuple[tuple[int, ...], ...] = ()
    accepted: tuple[tuple[int, ...], ...] = ()  # by round
    gaps: tuple[float, ...] = ()  # the smallest lead of any best guess over the second best


class Watched(ServingDrafter):
    """Notes how clear the guesses were that decided a round: libraries may break a tie differently."""

    def __init__(self, drafter: Drafter, *, head: FrozenHead, text: Sequence[int]) -> None:
        super().__init__(drafter, head=head)
        self._text = text  # prompt and what follows
        self.gap = float("inf")

    def logits(self, token: int) -> Tensor:
        """As served. What decides a round is its guesses up to the first wrong one."""
        logits = super().logits(token)
        best = logits.topk(2, dim=-1)
        leads = (best.values[:, 0] - best.values[:, 1]).tolist()
        want = self._text[self._length + 1 :][: len(leads)]
        for guess, right, lead in zip(best.indices[:, 0].tolist(), want, leads, strict=True):
            self.gap = min(self.gap, lead)
            if guess != right:
                break
        return logits


def change_config(directory: Path, changes: Mapping[str, Any]) -> None:
    """Set or remove fields of config.json, nested by dots."""
    path = directory / "config.json"
    keys = json.loads(path.read_text(encoding="utf-8"))
    for field, value in changes.items():
        *outer, last = field.split(".")
        inner = keys
        for name in outer:
            inner = inner[name]
        del inner[last]  # the export has each of them
        if value is not None:
            inner[last] = value
    path.write_text(json.dumps(keys), encoding="utf-8")


def write_drafters(directory: Path, drafter: Drafter) -> dict[str, int]:
    """The exported directories, right, rounded and wrong, and how many prompts are decoded with each."""
    state, config = drafter.state_dict(), drafter.config
    export(state, config=config, directory=directory / GOOD, dtype=torch.float32)
    export(state, config=config, directory=directory / ROUNDED)
    for name, changes in CHANGES.items():
        shutil.copytree(directory / GOOD, directory / name)
        change_config(directory / name, changes)
    shutil.copytree(directory / GOOD, directory / PREFIXED)
    weights = directory / PREFIXED / WEIGHTS
    tensors = {f"model.{name}": tensor for name, tensor in load_file(weights).items()}
    save_file(tensors, weights, metadata={"format": "pt"})
    return {GOOD: PROMPTS, ROUNDED: PROMPTS, PREFIXED: PROMPTS} | dict.fromkeys(CHANGES, WRONG_PROMPTS)


def decode_with(
    directory: Path, *, target: nn.Module, head: FrozenHead, texts: Texts, prompts: int
) -> Result:
    """Our own decoding of the first `prompts` prompts with one directory, in float32."""
    try:
        drafter = load_drafter(directory).drafter(dtype=torch.float32)
    except WorkerError as err:
        return Result(refused=err.message, kind=err.kind.label)
    tokens, accepted, gaps = [], [], []
    for index in range(prompts):
        prompt_P = texts.prompts[index]
        watched = Watched(drafter, head=head, text=texts.tokens_PT[index].tolist())
        got = speculative(target, drafter=watched, prompt_P=prompt_P, new_tokens=NEW_TOKENS)
        tokens.append(got.tokens)
        accepted.append(got.accepted)
        gaps.append(min(texts.gaps[index], watched.gap))
    return Result(tokens=tuple(tokens), accepted=tuple(accepted), gaps=tuple(gaps))


def main(directory: Path) -> None:
    """Everything, in order."""
    torch.set_num_threads(1)
    started = time.monotonic()
    frozen = save_target(directory / "target")
    head = load_head(directory / "target", dtype=torch.float32)
    texts = write_texts(frozen.model)
    drafter, losses = overfit(texts, config=drafter_config(frozen.model), head=head)
    trained = time.monotonic()
    drafters = write_drafters(directory, drafter)
    inputs = {
        "new_tokens": NEW_TOKENS,
        "block_size": BLOCK_SIZE,
        "prompts": [prompt.tolist() for prompt in texts.prompts],
        "drafters": drafters,
    }
    (directory / "inputs.json").write_text(json.dumps(inputs), encoding="utf-8")
    results = {}
    for name, prompts in drafters.items():
        result = decode_with(directory / name, target=frozen.model, head=head, texts=texts, prompts=prompts)
        results[name] = asdict(result)
    own = {
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "losses": losses,
        "looping": sum(looping(text[:NEW_TOKENS]) for text in texts.continuations) / PROMPTS,
        "plain": [text[: NEW_TOKENS + BLOCK_SIZE] for text in texts.continuations],
        "drafters": results,
        "train_seconds": trained - started,
        "decode_seconds": time.monotonic() - trained,
    }
    (directory / "own.json").write_text(json.dumps(own), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
