"""From one document to tokens and a loss mask, in each of the formats that `prepare` reads.

A sample's loss mask is 1 where the target itself speaks: the response, the
assistant's turns, or all of a plain text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_runner.corpus import TEXT_SUFFIXES, read_text, split_lines
from dflash_runner.job.mistakes import Mistakes
from dflash_runner.tensorfile import FileError

__all__ = ["FORMATS", "Sample", "most_bytes", "read_samples"]

TEXT_BYTES = 4 << 20  # of one document, at least; tokenising takes a hundred times that in memory
BYTES_PER_TOKEN = 64  # far more than a token of text has, so that what is refused is far too long
FORMATS = ("auto", "tokens", "text", "chat", "prompt_response")
_KEYS = {
    "tokens": ("tokens", "loss_mask"),
    "chat": ("messages",),
    "prompt_response": ("prompt", "response"),
    "text": ("text",),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One tokenised document; `line` counts from 1 in a .jsonl file and is 0 for a whole file."""

    line: int
    tokens: list[int]
    loss_mask: list[int]


def most_bytes(max_tokens: int) -> int:
    """How many bytes of text one document may have, of which `max_tokens` tokens are kept.

    Source: python/tests/test_job_prepare.py; one line of 24 MB took 2.6 GB and minutes (measured).
    """
    return max(TEXT_BYTES, BYTES_PER_TOKEN * max_tokens)


def read_samples(
    path: Path,
    *,
    tokenizer: Callable[[], Any],
    vocabulary: int,
    form: str,
    max_tokens: int,
    mistakes: Mistakes,
) -> Iterator[Sample]:
    """The samples of one file, tokenised, in order; also those too short to use.

    Args:
        path: .jsonl holds one document a line, .txt, .py and .md are one each.
        tokenizer: gives the target's; called only where there is text to tokenise.
        vocabulary: ids at or above it are refused.
        form: one of `FORMATS`; "auto" goes by each line's keys.
        max_tokens: what is kept of a document; a text far longer is refused before it is tokenised.
        mistakes: takes, with file and line, anything that is not such a document. Once there is
            one, the rest is only checked, and nothing more is yielded.

    Raises:
        FileError: there are too many mistakes.

    Source: proto/dflash_runner/job/v1/job.proto, Prepare.
    """
    limit = most_bytes(max_tokens)
    try:
        text = _text_of(path, form)
        if path.suffix in TEXT_SUFFIXES:
            _bound(f"{path}", (text,), limit)
            if not mistakes:
                tokens = _encode(tokenizer(), text)
                yield Sample(line=0, tokens=tokens, loss_mask=[1] * len(tokens))
            return
    except FileError as err:
        mistakes.add(err)
        return
    for number, line in split_lines(text):
        where = f"{path}:{number}"
        try:
            line_form, value = _document(where, line, form)
            _check(where, line_form, value, vocabulary, limit)
            if mistakes:
                continue
            tokens, mask = _tokens(where, line_form, value, tokenizer)
        except FileError as err:
            mistakes.add(err)
            continue
        yield Sample(line=number, tokens=tokens, loss_mask=mask)


def _text_of(path: Path, form: str) -> str:
    """A file's text, where it is of a kind that is read."""
    if path.suffix not in (*TEXT_SUFFIXES, ".jsonl"):
        raise FileError(f"read {path}: want a file ending in {', '.join((*TEXT_SUFFIXES, '.jsonl'))}")
    if path.suffix != ".jsonl" and form not in ("auto", "text"):
        raise FileError(f"read {path}: format {form}: want a .jsonl file")
    return read_text(path)


def _bound(where: str, texts: Sequence[str], limit: int) -> None:
    """Refuses a document of more text than is worth tokenising: nothing of it is cut here."""
    if 4 * sum(map(len, texts)) <= limit:  # no character has more than 4 bytes
        return
    size = sum(len(text.encode(errors="surrogatepass")) for text in texts)
    if size > limit:
        raise FileError(
            f"read {where}: want at most {limit} bytes of text in a document, got {size}",
            hint="it is too long: split it into documents; of each only max_tokens are kept",
        )


def _check(where: str, form: str, value: Mapping[str, Any], vocabulary: int, limit: int) -> None:
    """Refuses a document that cannot be a sample, before anything of it is tokenised."""
    if form == "tokens":
        tokens, _ = _given(where, value)
        if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
            odd = next(t for t in tokens if not 0 <= t < vocabulary)
            raise FileError(f"read {where}: tokens: want ids below {vocabulary}, got {odd}")
        return
    if form != "chat":
        _bound(where, [value[key] for key in _KEYS[form]], limit)
        return
    for i, message in enumerate(value["messages"]):
        if not isinstance(message, dict) or not all(
            isinstance(message.get(k), str) for k in ("role", "content")
        ):
            raise FileError(f"read {where}: messages[{i}]: want role and content as text")
    _bound(where, [message["content"] for message in value["messages"]], limit)


def _document(where: str, line: str, form: str) -> tuple[str, Mapping[str, Any]]:
    """The format of one .jsonl line, and its object with the keys of that format."""
    try:
        value = json.loads(line)
    except ValueError as err:
        raise FileError(f"read {where}: {err}") from err
    if not isinstance(value, dict):
        raise FileError(f"read {where}: want an object, got {type(value).__name__}")
    if form == "auto":
        form = next((f for f, keys in _KEYS.items() if all(k in value for k in keys)), "")
        if not form:
            want = "; ".join(" and ".join(keys) for keys in _KEYS.values())
            raise FileError(f"read {where}: want the keys {want}, got {sorted(value)}")
    for key in _KEYS[form]:
        want_type = str if form in ("text", "prompt_response") else list
        if not isinstance(value.get(key), want_type):
            got = type(value[key]).__name__ if key in value else "nothing"
            raise FileError(f"read {where}: {key}: want a {want_type.__name__}, got {got}")
    return form, value


def _tokens(
    where: str, form: str, value: Mapping[str, Any], tokenizer: Callable[[], Any]
) -> tuple[list[int], list[int]]:
    """Tokens and loss mask of one document that was checked."""
    if form == "tokens":
        return _given(where, value)
    if form == "chat":
        return _chat(where, value["messages"], tokenizer())
    if form == "text":
        tokens = _encode(tokenizer(), value["text"])
        return tokens, [1] * len(tokens)
    prompt, response = _encode(tokenizer(), value["prompt"]), _encode(tokenizer(), value["response"])
    if tokenizer().eos_token_id is not None:
        response.append(tokenizer().eos_token_id)
    return prompt + response, [0] * len(prompt) + [1] * len(response)


def _given(where: str, value: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """Tokens and loss mask that were prepared elsewhere."""
    tokens, mask = value["tokens"], value["loss_mask"]
    if any(type(t) is not int for t in tokens):
        raise FileError(f"read {where}: tokens: want whole numbers")
    if len(mask) != len(tokens):
        raise FileError(f"read {where}: loss_mask: want {len(tokens)} entries as tokens has, got {len(mask)}")
    if any(m not in (0, 1) for m in mask):
        raise FileError(f"read {where}: loss_mask: want 0 or 1 only")
    return tokens, [int(m) for m in mask]


def _chat(where: str, messages: Sequence[Any], tokenizer: Any) -> tuple[list[int], list[int]]:
    """A conversation under the tokenizer's own template, the assistant's words supervised.

    A template that marks generation itself is believed. For others a turn is
    what follows the generation prompt: its content and the end of turn after it.
    """
    if not tokenizer.chat_template:
        raise FileError(
            f"read {where}: messages: the target's tokenizer has no chat template",
            hint="add chat_template.jinja to the target's directory, or give prompt and response",
        )
    if "{% generation" in tokenizer.chat_template or "{%- generation" in tokenizer.chat_template:
        out = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        return list(out["input_ids"]), [int(m) for m in out["assistant_masks"]]
    full = _render(where, tokenizer, messages, prompt=False)
    spans = [
        _turn(where, tokenizer, messages, i, full) for i, m in enumerate(messages) if m["role"] == "assistant"
    ]
    out = tokenizer(full, add_special_tokens=False, return_offsets_mapping=True)
    mask = [int(any(b <= begin < end <= e for b, e in spans)) for begin, end in out["offset_mapping"]]
    return list(out["input_ids"]), mask


def _turn(
    where: str, tokenizer: Any, messages: Sequence[Mapping[str, str]], index: int, full: str
) -> tuple[int, int]:
    """Where in the rendered conversation an assistant's turn begins and ends."""
    before = _render(where, tokenizer, messages[:index], prompt=True)
    content = messages[index]["content"].strip()
    found = full.find(content, len(before)) if full.startswith(before) else -1
    if found < 0:
        raise FileError(
            f"read {where}: messages[{index}]: want the turn in the rendered conversation, got none",
            hint="this chat template rewrites earlier turns; mark them in it with {% generation %}",
        )
    end = found + len(content)
    mark = tokenizer.eos_token or ""
    return len(before), end + len(mark) if full.startswith(mark, end) else end


def _render(where: str, tokenizer: Any, messages: Sequence[Any], *, prompt: bool) -> str:
    """The template's text of some messages."""
    from jinja2.exceptions import TemplateError

    try:
        return tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=prompt)
    except (TemplateError, ValueError) as err:
        raise FileError(f"read {where}: messages: {err}") from err


def _encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text, nothing added."""
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
