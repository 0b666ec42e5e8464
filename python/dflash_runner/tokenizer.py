"""Tokenizers: the embedded target's own, and the checks before using any other.

The embedded one is byte-level without merges: 256 bytes and three specials. A
larger vocabulary made drafts much worse in the same training time (measured:
measured).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dflash_runner.data import file_digest
from dflash_runner.tensorfile import FileError

__all__ = ["BYTE_VOCABULARY", "SPECIALS", "load_tokenizer", "tokenizer_digest", "write_byte_tokenizer"]

SPECIALS = ("<|endoftext|>", "<|pad|>", "<|mask|>")
BYTE_VOCABULARY = len(SPECIALS) + 256
_FILE = "tokenizer.json"


def write_byte_tokenizer(directory: Path | str) -> Any:
    """The byte-level tokenizer, written to `directory` in the public format.

    Ids 0 to 2 are `SPECIALS`; the 256 bytes follow in the order of their printable stand-ins.

    Source: GPT-2's byte alphabet, as `tokenizers.pre_tokenizers.ByteLevel` has it.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {
        token: i for i, token in enumerate((*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet())))
    }
    assert len(vocabulary) == BYTE_VOCABULARY
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=SPECIALS[0], pad_token=SPECIALS[1], mask_token=SPECIALS[2]
    )
    tokenizer.save_pretrained(directory)
    return tokenizer


def load_tokenizer(directory: Path | str) -> Any:
    """The tokenizer of a target's directory; nothing is fetched and no code in it is run.

    Raises:
        FileError: there is none, or it cannot be read.

    Source: transformers, AutoTokenizer.from_pretrained.
    """
    from transformers import AutoTokenizer

    tokenizer_digest(directory)
    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise FileError(f"read {Path(directory) / _FILE}: {err}") from err


def tokenizer_digest(directory: Path | str) -> str:
    """SHA-256 of a target's tokenizer.json, in hex: what ties data to a target.

    Raises:
        FileError: the directory or the file is missing.

    Source: proto/dflash_runner/job/v1/job.proto, Prepare.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise FileError(f"open {directory}: no such target directory")
    if not (directory / _FILE).is_file():
        raise FileError(
            f"read {directory}: want a tokenizer ({_FILE}), got none",
            hint="save the target's tokenizer into its directory with tokenizer.save_pretrained",
        )
    return file_digest(directory / _FILE)
