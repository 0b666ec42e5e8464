"""Evaluation of an exported drafter: prompts decoded plainly and speculatively, and compared."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash_runner import devices, head
from dflash_runner.corpus import read_text, split_lines
from dflash_runner.data import read_prompts
from dflash_runner.decode import Decoded, Parting, looping, parting, plain, speculative
from dflash_runner.export import load_drafter
from dflash_runner.job.models import load_target, set_up_device, set_up_torch
from dflash_runner.job.reporter import Reporter
from dflash_runner.job.v1 import job_pb2
from dflash_runner.serving import ServingDrafter
from dflash_runner.tensorfile import FileError
from dflash_runner.tokenizer import load_tokenizer

__all__ = ["evaluate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Both:
    """One prompt decoded both ways, and the seconds each took."""

    dtype: torch.dtype
    plain: Decoded
    speculative: Decoded
    plain_s: float
    speculative_s: float
    parting: Parting | None  # None where the texts are equal, or where a CPU made them

    @property
    def tie(self) -> bool:
        """Whether the texts part where a GPU's rounding decides: each is a greedy text of the target."""
        return self.parting is not None and self.parting.is_tie(self.dtype)

    @property
    def lossless(self) -> bool:
        """Whether the drafter changed nothing."""
        return self.plain.tokens == self.speculative.tokens or self.tie


def evaluate(job: job_pb2.Evaluate, *, threads: int, reporter: Reporter) -> None:
    """Decodes the prompts both ways and reports acceptance, looping, losslessness and speed.

    Raises:
        FileError: an impossible setting, an unusable target, or bad prompts.
        WorkerError: the drafter's directory cannot be used with this target.

    Source: DFlash (arXiv 2602.06036) section 5: the bonus token is counted.
    """
    for name in ("drafter_directory", "target_directory", "prompts", "new_tokens"):
        if not getattr(job, name):
            raise FileError(f"evaluate: {name}: missing")
    set_up_torch(threads)
    device = set_up_device(job.device)
    prompts = [prompt_P.to(device) for prompt_P in _prompts(job)]
    model = load_target(job.target_directory, dtype=job.dtype, device=device)
    drafter = load_drafter(Path(job.drafter_directory))
    _check_fit(job, model, drafter.config)
    frozen = head.load(Path(job.target_directory), dtype=model.dtype, device=device)
    serving = ServingDrafter(drafter.drafter(dtype=model.dtype).to(device).eval(), head=frozen)
    results = []
    for done, prompt in enumerate(prompts, 1):
        results.append(_both(model, serving, prompt, job.new_tokens))
        reporter.progress("evaluate", done, len(prompts), acceptance=_acceptance(results))
    reporter.result(_figures(results), {"drafter_directory": job.drafter_directory})


def _check_fit(job: job_pb2.Evaluate, model: Any, config: Any) -> None:
    """Refuses a drafter of another target."""
    own = model.config.get_text_config()
    pairs = {
        "hidden_size": (own.hidden_size, config.hidden_size),
        "vocab_size": (own.vocab_size, config.vocab_size),
        "num_target_layers": (own.num_hidden_layers, config.target_layers),
    }
    for name, (want, got) in pairs.items():
        if want != got:
            raise FileError(
                f"evaluate: {job.drafter_directory}: {name}: want the target's {want}, got {got}",
                hint="this drafter was trained for another target",
            )


def _both(model: Any, serving: ServingDrafter, prompt_P: Tensor, new_tokens: int) -> Both:
    """One prompt, first plainly, then with the drafter."""
    ends = model.generation_config.eos_token_id
    stop_ids = frozenset([ends] if isinstance(ends, int) else ends or [])
    devices.settle(prompt_P.device)
    began = time.perf_counter()
    one = plain(model, prompt_P=prompt_P, new_tokens=new_tokens, stop_ids=stop_ids)
    devices.settle(prompt_P.device)
    middle = time.perf_counter()
    other = speculative(model, drafter=serving, prompt_P=prompt_P, new_tokens=new_tokens, stop_ids=stop_ids)
    devices.settle(prompt_P.device)
    ended = time.perf_counter()
    apart = None
    if prompt_P.device.type != "cpu":
        apart = parting(model, prompt_P=prompt_P, one=one.tokens, other=other.tokens)
    return Both(
        dtype=model.dtype,
        plain=one,
        speculative=other,
        plain_s=middle - began,
        speculative_s=ended - middle,
        parting=apart,
    )


def _acceptance(results: list[Both]) -> float:
    """Tokens gained per target forward over some prompts; 0 when there was no forward."""
    forwards = sum(len(r.speculative.accepted) for r in results)
    return sum(sum(r.speculative.accepted) for r in results) / forwards if forwards else 0.0


def _figures(results: list[Both]) -> dict[str, float]:
    """All that is reported of the prompts; speeds are of new tokens, prompts' forwards included."""
    straight = [r for r in results if not looping(r.plain.tokens)]
    tokens = sum(len(r.plain.tokens) for r in results)
    plain_s, speculative_s = sum(r.plain_s for r in results), sum(r.speculative_s for r in results)
    return {
        "prompts": len(results),
        "tokens": tokens,
        "acceptance": _acceptance(results),
        "acceptance_nonlooping": _acceptance(straight),
        "nonlooping_prompts": len(straight),
        "looping_share": 1 - len(straight) / len(results),
        "lossless": sum(r.lossless for r in results),
        "near_ties": sum(r.tie for r in results),
        "plain_tokens_per_s": tokens / plain_s,
        "tokens_per_s": tokens / speculative_s,
        "speedup": plain_s / speculative_s,
    }


def _prompts(job: job_pb2.Evaluate) -> list[Tensor]:
    """The first `prompt_count` prompts, or all of them when it is 0; each int64."""
    path = Path(job.prompts)
    if path.suffix == ".jsonl":
        prompts = _prompt_lines(path, job.target_directory)
    else:
        prompts = [torch.tensor(row.tolist()) for row in read_prompts(path)]
    if not prompts:
        raise FileError(f"evaluate: {path}: want at least one prompt, got none")
    if job.prompt_count > len(prompts):
        raise FileError(f"evaluate: prompt_count: want at most {len(prompts)}, got {job.prompt_count}")
    return prompts[: job.prompt_count or None]


def _prompt_lines(path: Path, target_directory: str) -> list[Tensor]:
    """The prompts of a .jsonl file: tokens, messages, prompt or text on each line."""
    tokenizer = load_tokenizer(target_directory)
    prompts = []
    for number, line in split_lines(read_text(path)):
        try:
            value = json.loads(line)
        except ValueError as err:
            raise FileError(f"read {path}:{number}: {err}") from err
        prompts.append(_prompt(f"{path}:{number}", value, tokenizer))
    return prompts


def _prompt(where: str, value: Any, tokenizer: Any) -> Tensor:
    """One prompt's token ids."""
    value = value if isinstance(value, dict) else {}
    ids = value.get("tokens")
    text = value.get("prompt", value.get("text"))
    if isinstance(value.get("messages"), list) and tokenizer.chat_template:
        ids = tokenizer.apply_chat_template(value["messages"], add_generation_prompt=True, return_dict=True)
        ids = list(ids["input_ids"])
    elif ids is None and isinstance(text, str):
        ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if not isinstance(ids, list) or not ids or any(type(i) is not int for i in ids):
        raise FileError(
            f"read {where}: want a prompt: tokens, messages (with a chat template), prompt or text"
        )
    if not 0 <= min(ids) <= max(ids) < len(tokenizer):
        raise FileError(f"read {where}: tokens: want ids below {len(tokenizer)}, got {max(ids)}")
    return torch.tensor(ids)
