"""The compiled parts of a target's blocks: attention by tiles, norms, and the rotation; see `compiled`.

They are in the model only while a row is made. Everything else that it computes, decoding and documents
alone among it, has shapes without end and goes on by the model's own functions, as if these were not there.
Compiled, a norm keeps float32 where the model rounds between two calls of torch.

Shapes: B = 1 row, S tokens of the row, H query heads, G key-value heads, E head size.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from dflash_runner.attention import AttentionCounter
from dflash_runner.compiled import Backend, Compiled
from dflash_runner.config import MIN_FLEX_HEAD_DIM, FlexSettings
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.flex import DTYPE, kernel_options
from dflash_runner.masks import SLIDING, kinds_of
from dflash_runner.row_tiles import PER_KIND, lists
from dflash_runner.tiles import SIZE

HINT = "target.attention: sdpa makes rows by the model's own attention"
NAME = "dflash_runner_flex"
"""Of our attention, among those that transformers knows; no mask is registered under it, so none is made."""

_ROTATION = "apply_rotary_pos_emb"
_TOLD = frozenset({"scaling", "sliding_window", "is_causal", "dropout"})  # what is obeyed, or checked
_IDLE = frozenset({"position_ids", "cache_position", "use_cache"})  # what changes no attention


def _attention(
    query_BHSE: Tensor,
    key_BGSE: Tensor,
    value_BGSE: Tensor,
    mask: BlockMask,
    scale: float | None,
    options: dict[str, Any],
) -> Tensor:
    """What is compiled: the output by tokens, [B,S,H,E], as transformers wants it."""
    out_BHSE = flex_attention(
        query_BHSE,
        key_BGSE,
        value_BGSE,
        block_mask=mask,
        scale=scale,
        enable_gqa=True,
        kernel_options=options,
    )
    return out_BHSE.transpose(1, 2)


class RowKernels:
    """The compiled parts of one target; used on the thread that made it alone."""

    def __init__(
        self, decoder: nn.Module, *, layers: int, text: Any, window: int | None, backend: Backend = "inductor"
    ) -> None:
        """Make the compiled functions; nothing is compiled before it is called, and the model stays as it is.

        Hidden states are normed by one function, whichever norm of a block it is; norms of another width by
        one for each name, as queries and keys have other shapes.

        Args:
            decoder: of a causal language model of transformers.
            layers: how many of its blocks a row runs.
            text: the decoder's configuration, which says what attention its blocks call.
            window: tokens that its sliding layers see; None where it has none.
            backend: of the compiler; another than torch's own in tests.

        Raises:
            WorkerError: invalid, for weights of another dtype than the kernels'; fatal, where the environment
                switches the compiler off.
        """
        dtype = next(decoder.parameters()).dtype
        if dtype != DTYPE:
            raise _refused(f"want weights in {DTYPE}, got {dtype}")
        self._text, self._layers, self._window = text, layers, window
        self.kinds = kinds_of(text)
        self.counter = AttentionCounter()
        self._attention = Compiled(_attention, what="attention of rows", backend=backend)
        self._options = kernel_options(FlexSettings())
        self._norms: dict[str, Compiled] = {}
        self._forwards: list[tuple[nn.Module, Callable[..., Any]]] = []
        for path, module in decoder.layers[:layers].named_modules():
            self._take_norm(path, module, hidden_size=text.hidden_size, backend=backend)
        self._family = sys.modules[type(decoder).__module__]
        rotation = getattr(self._family, _ROTATION, None)
        self._rotation = (
            Compiled(rotation, what="rotation of rows", backend=backend) if _is_plain(rotation) else None
        )
        self._masks: dict[str, BlockMask] = {}

    def _take_norm(self, path: str, module: nn.Module, *, hidden_size: int, backend: Backend) -> None:
        """Have a module's forward compiled, where it is a norm."""
        forward = type(module).forward
        if not type(module).__name__.endswith("RMSNorm") or not _is_plain(forward):
            return
        weight = getattr(module, "weight", None)
        wide = weight is not None and tuple(weight.shape) == (hidden_size,)
        what = f"{'hidden' if wide else path.rsplit('.', 1)[-1]} norm by {type(module).__name__}"
        if what not in self._norms:
            self._norms[what] = Compiled(forward, what=what, backend=backend)
        self._forwards.append((module, partial(self._norms[what], module)))

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of what is compiled: which norms and whether the rotation, besides attention."""
        return ("attention", *(() if self._rotation is None else ("rotation",)), *sorted(self._norms))

    def check(self) -> None:
        """Refuse to go on, where a compiled part has refused a call or another thread asks.

        Raises:
            WorkerError: fatal.
        """
        for compiled in (self._attention, self._rotation, *self._norms.values()):
            if compiled is not None:
                compiled.check()

    def lists(self, documents_S: Tensor) -> list[Tensor]:
        """A row's masks by tiles, on the host, in the order that `over` takes: see `row_tiles.lists`."""
        return lists(documents_S, kinds=self.kinds, window=self._window)

    @contextlib.contextmanager
    def over(self, lists: Sequence[Tensor]) -> Iterator[None]:
        """The model with its compiled parts, for one row's forward; afterwards as it was.

        Args:
            lists: of the row, on the device. Made outside of inference mode every time: the compiler tells
                tensors made within apart.

        Raises:
            WorkerError: invalid, where the forward's blocks did not each call this attention once.
        """
        from transformers import AttentionInterface

        if len(lists) != PER_KIND * len(self.kinds):
            raise AssertionError(f"want {PER_KIND} lists for each of {self.kinds}, got {len(lists)}")
        cut = (lists[at : at + PER_KIND] for at in range(0, len(lists), PER_KIND))
        self._masks = {kind: block_mask(one) for kind, one in zip(self.kinds, cut, strict=True)}
        before, calls = self._text._attn_implementation, self.counter.calls  # noqa: SLF001 what blocks read
        rotation = getattr(self._family, _ROTATION, None)
        try:
            AttentionInterface.register(NAME, self._attend)
            self._text._attn_implementation = NAME  # noqa: SLF001
            for module, forward in self._forwards:
                vars(module)["forward"] = forward
            if self._rotation is not None:
                setattr(self._family, _ROTATION, self._rotation)
            yield
        finally:
            if self._rotation is not None:
                setattr(self._family, _ROTATION, rotation)
            for module, _ in self._forwards:
                vars(module).pop("forward", None)
            self._text._attn_implementation = before  # noqa: SLF001
            AttentionInterface.register(NAME, _closed)
            self._masks = {}
        if (called := self.counter.calls - calls) != self._layers:
            raise _refused(f"want {self._layers} blocks to call it, got {called} calls")

    def _attend(
        self,
        module: nn.Module,
        query_BHSE: Tensor,
        key_BGSE: Tensor,
        value_BGSE: Tensor,
        mask: Tensor | None,
        **given: Any,
    ) -> tuple[Tensor, None]:
        """Our attention, as a block calls it.

        Raises:
            WorkerError: invalid, for anything that it would have to leave out; fatal, as `Compiled` says.
        """
        kind = self._kind_of(module)
        _check_given(module, mask, given, window=self._window if kind == SLIDING else None)
        _check_heads(module, query_BHSE, key_BGSE, value_BGSE)
        self.counter.calls += 1
        out_BSHE = self._attention(
            query_BHSE, key_BGSE, value_BGSE, self._masks[kind], given.get("scaling"), self._options
        )
        return out_BSHE, None

    def _kind_of(self, module: nn.Module) -> str:
        """The kind of layer that a block's attention is."""
        if len(self.kinds) == 1:
            return self.kinds[0]
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int):
            raise _refused(f"{type(module).__name__}: want its layer_idx among {self.kinds}, got {layer!r}")
        return self._text.layer_types[layer]


def block_mask(lists: Sequence[Tensor]) -> BlockMask:
    """The mask that flex attention reads, of one kind's lists; without a backward's, as there is none."""
    *tiles, first_S = lists
    return BlockMask.from_kv_blocks(
        *tiles,
        BLOCK_SIZE=SIZE,
        mask_mod=_visible(first_S),
        seq_lengths=(len(first_S), len(first_S)),
        compute_q_blocks=False,
    )


def _visible(first_S: Tensor) -> Callable[..., Tensor]:
    """The rule element by element, as the kernels evaluate it in partial tiles."""
    last = first_S.shape[0] - 1

    def visible(_row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own = query.clamp(max=last)  # the last tile may reach beyond the row
        return (key <= query) & (key >= first_S[own])

    return visible


def _check_given(
    module: nn.Module, mask: Tensor | None, given: dict[str, Any], *, window: int | None
) -> None:
    """Refuse what a block asks of its attention and this one does not do."""
    who = type(module).__name__
    if module.training:
        raise _refused(f"{who}: want a model in eval mode")
    if mask is not None:
        raise _refused(f"{who}: want no mask of the model's own, got {type(mask).__name__}")
    if given.get("dropout"):
        raise _refused(f"{who}: dropout: want 0, got {given['dropout']}")
    if given.get("is_causal", True) is False or getattr(module, "is_causal", True) is False:
        raise _refused(f"{who}: is_causal: want true, got false")
    slides = given.get("sliding_window")
    if slides is not None and slides != window:
        raise _refused(f"{who}: sliding_window: want {window} in a layer of its kind, got {slides}")
    unknown = sorted(
        name
        for name, value in given.items()
        if name not in _TOLD | _IDLE and not (value is None or value is False)
    )
    if unknown:
        raise _refused(f"{who}: want nothing besides scale and window, got {', '.join(unknown)}")


def _check_heads(module: nn.Module, query_BHSE: Tensor, key_BGSE: Tensor, value_BGSE: Tensor) -> None:
    """Refuse what the kernels have no instructions for, or compute in another precision."""
    who = type(module).__name__
    sizes = [query_BHSE.shape[-1], value_BGSE.shape[-1]]
    if min(sizes) < MIN_FLEX_HEAD_DIM:
        raise _refused(f"{who}: head size: want at least {MIN_FLEX_HEAD_DIM}, got {min(sizes)}")
    odd = [tensor.dtype for tensor in (query_BHSE, key_BGSE, value_BGSE) if tensor.dtype != DTYPE]
    if odd:
        raise _refused(f"{who}: want queries, keys and values in {DTYPE}, got {odd[0]}")


def _refused(what: str) -> WorkerError:
    return WorkerError(Kind.INVALID, f"make row by flex attention: {what}", hint=HINT)


def _is_plain(function: Any) -> bool:
    """Whether `Compiled` can take it: a function without a closure."""
    return isinstance(function, types.FunctionType) and not function.__closure__


def _closed(*_: Any, **__: Any) -> Any:
    raise AssertionError("call flex attention of rows: want a row being made, got none")
