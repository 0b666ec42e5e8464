"""Loads exported drafters with the public `dflash` package and decodes with it.

Runs in the compat environment, without any of our own modules: `decode_public.py DIRECTORY`, after
`export_drafters.py`. Writes `public.json` there.

The package takes hidden states from `output_hidden_states`, whose last entry transformers norms: an id
of the target's last layer means something else here than where blocks are hooked, and is not used.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dflash.model
import torch
import transformers
from dflash import DFlashDraftModel
from torch import nn


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What the package makes of one directory; texts and rounds by prompt."""

    error: str = ""  # why nothing was decoded
    loaded: int = 0  # tensors of the model
    strange: tuple[str, ...] = ()  # tensors that the file lacks, or has beyond the model's
    dtype: str = ""  # of the weights as they are stored
    block_size: int = 0
    target_layer_ids: tuple[int, ...] = ()
    tokens: tuple[tuple[int, ...], ...] = ()
    accepted: tuple[tuple[int, ...], ...] = ()


def load(directory: Path) -> tuple[DFlashDraftModel, tuple[str, ...]]:
    """The drafter in its stored dtype, and the tensors that did not match."""
    model, said = DFlashDraftModel.from_pretrained(
        directory, dtype="auto", output_loading_info=True, local_files_only=True
    )
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")
    strange = [f"{kind}: {entry}" for kind in kinds for entry in sorted(map(str, said[kind]))]
    return model.eval(), tuple(strange)


def plain(target: nn.Module, prompt: list[int], *, new_tokens: int) -> list[int]:
    """Greedy decoding by the target alone, by transformers' own `generate`."""
    ids = torch.tensor([prompt])
    out = target.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False
    )
    return out[0, len(prompt) :].tolist()


def rounds_of(accepted: list[int], *, new_tokens: int) -> tuple[int, ...]:
    """The rounds that begin before `new_tokens` are there; the prompt's forward gives the first token.

    The package shortens its last blocks to what it was asked for, so it is asked for a block more
    than is compared, and these rounds all have whole blocks.
    """
    rounds, have = [], 1
    for gained in accepted:
        if have >= new_tokens:
            break
        rounds.append(gained)
        have += gained
    return tuple(rounds)


def decode_with(directory: Path, *, target: nn.Module, inputs: dict[str, Any], prompts: int) -> Result:
    """The package's decoding of the first `prompts` prompts with one directory, in float32."""
    try:
        model, strange = load(directory)
    except (AttributeError, RuntimeError, ValueError) as err:
        return Result(error=f"{type(err).__name__}: {err}")
    stored = str(model.dtype).removeprefix("torch.")
    model = model.float()
    new_tokens, tokens, accepted = inputs["new_tokens"], [], []
    for prompt in inputs["prompts"][:prompts]:
        out = dflash.model.dflash_generate(
            model,
            target=target,
            input_ids=torch.tensor([prompt]),
            max_new_tokens=new_tokens + inputs["block_size"],
            stop_token_ids=None,
            return_stats=True,
        )
        tokens.append(tuple(out.output_ids[0, len(prompt) :].tolist()))
        accepted.append(rounds_of(out.acceptance_lengths, new_tokens=new_tokens))
    return Result(
        loaded=len(model.state_dict()),
        strange=strange,
        dtype=stored,
        block_size=model.block_size,
        target_layer_ids=tuple(model.target_layer_ids),
        tokens=tuple(tokens),
        accepted=tuple(accepted),
    )


def main(directory: Path) -> None:
    """Everything, in order."""
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    dflash.model._cuda_time = time.perf_counter  # noqa: SLF001 it waits for a GPU, which is not there
    started = time.monotonic()
    inputs = json.loads((directory / "inputs.json").read_text(encoding="utf-8"))
    target = transformers.AutoModelForCausalLM.from_pretrained(
        directory / "target", dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
    ).eval()
    target.generation_config.eos_token_id = None  # texts of one length
    length = inputs["new_tokens"] + inputs["block_size"]
    results = {
        name: asdict(decode_with(directory / name, target=target, inputs=inputs, prompts=prompts))
        for name, prompts in inputs["drafters"].items()
    }
    public = {
        "versions": {name: version(name) for name in ("dflash", "torch", "transformers")},
        "plain": [plain(target, prompt, new_tokens=length) for prompt in inputs["prompts"]],
        "drafters": results,
        "seconds": time.monotonic() - started,
    }
    (directory / "public.json").write_text(json.dumps(public), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
