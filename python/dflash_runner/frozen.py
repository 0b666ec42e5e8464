"""The frozen target: a causal language model, and its hidden states of packed rows.

Shapes: S tokens of the row, L captured layers, D hidden size, C = L*D.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dflash_runner.capture import Capture, decoder_layers, decoder_of
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.masks import kinds_of, masks
from dflash_runner.packing import Packed
from dflash_runner.pretrained import read_target, text_config, window_of
from dflash_runner.staging import send_together

if TYPE_CHECKING:
    from dflash_runner.compiled import Backend
    from dflash_runner.row_kernels import RowKernels


class _Enough(Exception):
    """Ends a forward after the last captured block; never seen outside."""


class FrozenTarget:
    """A causal language model of transformers, and its hidden states of packed rows.

    A row never runs a block above the last captured one. Those blocks and the head are held only where
    something else needs them: decoding does, and so a target that may be asked to evaluate holds the
    whole model. One that only makes rows holds the embedding, the blocks up to the last captured one
    and the final norm, which belongs to the decoder and is a single vector.
    """

    def __init__(
        self,
        directory: Path,
        *,
        dtype: torch.dtype,
        layer_ids: tuple[int, ...],
        whole: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        """Read the model, and let go of what is above the last captured block unless `whole`.

        Weights that are stored in `dtype` are the file's own pages until they are on a device: they take no
        memory of the host besides its cache of files.

        Args:
            directory: config.json and safetensors.
            dtype: of weights and hidden states.
            layer_ids: captured, 0-based, rising.
            whole: keep all of the model, so that it can decode.
            device: for what is kept.

        Raises:
            WorkerError: not_found or invalid, where the directory holds no such model, or it has no such
                layer.
        """
        model = read_target(directory, dtype=dtype)
        layers = decoder_layers(model)
        if not layer_ids or not 0 <= layer_ids[0] <= layer_ids[-1] < len(layers):
            want = f"target.layer_ids: want 0 to {len(layers) - 1}, got {list(layer_ids)}"
            raise WorkerError(Kind.INVALID, f"load target {directory}: {want}")
        self._hold(model, layers, layer_ids=layer_ids, whole=whole)
        self.dtype, self.device = dtype, torch.device(device)
        (model if whole else self.decoder).to(self.device)

    @classmethod
    def of_model(cls, model: nn.Module, *, layer_ids: tuple[int, ...]) -> FrozenTarget:
        """A whole model that is there already, in eval mode and without gradients, where it is.

        Args:
            model: a causal language model of transformers, all of one dtype on one device.
            layer_ids: captured, 0-based, rising.
        """
        target = cls.__new__(cls)
        target._hold(model, decoder_layers(model), layer_ids=layer_ids, whole=True)  # noqa: SLF001 of this class
        first = next(model.parameters())
        target.dtype, target.device = first.dtype, first.device
        return target

    def _hold(
        self, model: nn.Module, layers: nn.ModuleList, *, layer_ids: tuple[int, ...], whole: bool
    ) -> None:
        """Keep a model's parts, and let go of what is above the last captured block unless `whole`."""
        self.layer_ids = layer_ids
        self.text: Any = text_config(model)  # of the whole model, also where it is cut
        self.window = window_of(model)
        self.decoder = decoder_of(model)
        self._whole = model if whole else None
        self._last = layers[layer_ids[-1]]
        self._kernels: RowKernels | None = None
        if not whole:
            del layers[layer_ids[-1] + 1 :]

    @property
    def model(self) -> nn.Module:
        """The whole model, which decodes.

        Raises:
            WorkerError: invalid, where only the blocks up to the last captured one are held.
        """
        if self._whole is None:
            raise WorkerError(
                Kind.INVALID,
                f"decode with target: want the whole model, got its blocks 0 to {self.layer_ids[-1]}",
                hint="a target that is given no prompts holds no more than its rows need",
            )
        return self._whole

    @property
    def cut(self) -> bool:
        """Whether the blocks above the last captured one were let go."""
        return self._whole is None

    def parameters(self) -> dict[str, Tensor]:
        """Every weight that is held, by name."""
        return dict((self.decoder if self._whole is None else self._whole).named_parameters())

    @property
    def width(self) -> int:
        """C: elements of hidden states per token."""
        return len(self.layer_ids) * self.text.hidden_size

    @property
    def layers_run(self) -> int:
        """How many blocks a row runs: those up to the last captured one."""
        return self.layer_ids[-1] + 1

    @property
    def kernels(self) -> RowKernels | None:
        """The compiled parts that rows are made by; None where the model makes them alone."""
        return self._kernels

    def compile_rows(self, *, backend: Backend = "inductor") -> None:
        """Make rows by compiled attention, norms and rotation from now on; see `row_kernels`. Nothing else
        that the model computes changes.

        Args:
            backend: of the compiler; another than torch's own in tests.

        Raises:
            WorkerError: as `RowKernels` says.
        """
        from dflash_runner.row_kernels import RowKernels  # imports the compiler, which takes seconds

        self._kernels = RowKernels(
            self.decoder, layers=self.layers_run, text=self.text, window=self.window, backend=backend
        )

    def hidden_states(self, row: Packed) -> Tensor:
        """hidden_SC of a packed row, every document as if it were alone; zeros at padding. On the device.

        Layers above the last captured one do not run.

        Args:
            row: its documents apart by positions; brought to the device where it is not there.

        Raises:
            WorkerError: where rows are compiled, as `recordable` says.

        Source: the published captured layers, after the block.
        Compile: as `compile_rows` says; S is static per bucket.
        """
        return self.own_hidden_states(row) if self._kernels is None else self.masked_hidden_states(row)

    def masked_hidden_states(self, row: Packed) -> Tensor:
        """hidden_SC of a packed row by `recordable`: whatever it reads is made and sent for it here.

        Args:
            row: as `hidden_states` takes it.

        Raises:
            WorkerError: as `recordable` says.
        """
        lists = self.lists(row)
        if lists:
            with torch.inference_mode(False):  # as recordings have them: see `RowKernels.over`
                lists = send_together(lists, self.device)
        row = row.to(self.device)
        return self.recordable(
            tokens_S=row.tokens_S, documents_S=row.documents_S, positions_1S=row.positions(), lists=lists
        )

    def lists(self, row: Packed) -> list[Tensor]:
        """A row's masks by tiles, on the host; none where rows are not compiled."""
        return [] if self._kernels is None else self._kernels.lists(row.documents_S)

    @torch.inference_mode()
    def own_hidden_states(self, row: Packed) -> Tensor:
        """`hidden_states` by the model's own attention, norms and masks, whether or not rows are compiled.

        The masks are the model's own, of whatever kinds
        of layers it has: positions that begin again tell it where a document ends. Handing it one mask
        would put that mask in the place of every window.

        Args:
            row: its documents apart by positions; brought to the device where it is not there.

        Source: transformers, masking_utils.
        Compile: not compiled.
        """
        row = row.to(self.device)
        hidden_SC = self.run(row.tokens_S, positions_1S=row.positions())
        return hidden_SC.masked_fill(row.documents_S[:, None] < 0, 0.0)

    @torch.inference_mode()
    def recordable(
        self, *, tokens_S: Tensor, documents_S: Tensor, positions_1S: Tensor, lists: Sequence[Tensor] = ()
    ) -> Tensor:
        """hidden_SC as `hidden_states` makes it, bit for bit, by work that may be recorded. Where rows are
        not compiled, the masks are made here, see `masks`; a row that is one document takes the same kernels
        then, where the model's own masks would take others.

        Args:
            tokens_S: int32, on the device.
            documents_S: int32, on the device; -1 at padding.
            positions_1S: int64, on the device, as `Packed.positions` gives them.
            lists: on the device, as `lists` gives them.

        Raises:
            WorkerError: invalid, where the model's decoder takes no such masks, or its blocks ask for what
                compiled attention does not do; fatal, as `Compiled` says.

        Compile: may be recorded where the model's own code neither waits for the device nor copies to it.
        """
        if self._kernels is not None:
            with self._kernels.over(lists):
                hidden_SC = self.run(tokens_S, positions_1S=positions_1S)
            return hidden_SC.masked_fill_(documents_S[:, None] < 0, 0.0)
        mask = masks(positions_1S, kinds=kinds_of(self.text), window=self.window)
        try:
            hidden_SC = self.run(tokens_S, positions_1S=positions_1S, mask=mask)
        except (AttributeError, KeyError, TypeError, ValueError) as err:
            raise WorkerError(
                Kind.INVALID,
                f"make row under masks: {type(self.decoder).__name__}: {type(err).__name__}: {err}",
                hint="rows of this family cannot be recorded: set target.replay: false",
            ) from err
        return hidden_SC.masked_fill_(documents_S[:, None] < 0, 0.0)

    @torch.inference_mode()
    def run(
        self,
        tokens_S: Tensor,
        *,
        positions_1S: Tensor | None = None,
        mask: Tensor | dict[str, Tensor] | None = None,
    ) -> Tensor:
        """hidden_SC of the captured layers, by a forward that ends after the last of them.

        Args:
            tokens_S: ids of any integer dtype, on the device.
            positions_1S: int64; left out, the model counts and takes the tokens for one document.
            mask: as `masks` makes it; left out, the model makes its own.
        """
        with Capture(self.decoder, layer_ids=self.layer_ids) as capture:
            stop = self._last.register_forward_hook(_enough)  # after the capture's own hook
            try:
                self.decoder(
                    input_ids=tokens_S[None].long(),
                    attention_mask=mask,
                    position_ids=positions_1S,
                    use_cache=False,
                )
                raise AssertionError("the last captured block never ran")
            except _Enough:
                return capture.take()[0]
            finally:
                stop.remove()


def _enough(_module: nn.Module, _inputs: object, _output: object) -> None:
    raise _Enough
