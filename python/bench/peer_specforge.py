"""SpecForge's step for DFlash, by what its checkout publishes.

Known: 40d8feff (2026-07, `specforge.core.dflash`) and a6b6b023 (2026-08, `specforge.algorithms.common`).
Source: https://github.com/sgl-project/SpecForge; its training loop calls the model, the backward and the
optimiser as here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peer_trainer
from peer_checkout import Checkout
from peer_trainer import Asked, Trainer
from shape import TARGET_LAYERS
from torch import Tensor, device, nn

KNOWN = "SpecForge is known as of 40d8feff and a6b6b023 (sgl-project/SpecForge, 2026-07 and 2026-08)"
_MODELS = ("specforge.core.dflash", "specforge.algorithms.common.dflash_family_model")  # of both versions
_WRAPPER = ("FSDPTrainingBackend", "ParallelConfig")


def build(asked: Asked) -> Trainer:
    """The online DFlash model, compiled as the trainer compiles it by itself: its attention alone."""
    checkout = Checkout(asked.checkout, trainer="SpecForge", known=KNOWN)
    found = [
        checkout.find("OnlineDFlashModel", *_MODELS),
        checkout.find("DFlashDraftModel", "specforge.modeling.draft.dflash"),
        checkout.find("BF16Optimizer", "specforge.optimizer"),
    ]
    found += [checkout.find(name, "specforge.training.backend") for name in _WRAPPER if asked.fsdp]
    online, drafter, optimiser, *wrapper = (checkout.load(one) for one in found)
    attention = "sdpa" if asked.device == "cpu" else "flex_attention"
    with device(asked.device):
        draft = checkout.call(
            drafter, "DFlashDraftModel", config=_settings(checkout, asked, drafter, attention)
        )
    draft = draft.to(dtype=asked.dtype).train()
    embedding, head = peer_trainer.embedding_and_head(asked)
    model = checkout.call(
        online,
        "OnlineDFlashModel",
        draft_model=draft,
        target_lm_head=head,
        target_embed_tokens=embedding,
        mask_token_id=asked.shape.mask_token_id,
        block_size=asked.shape.block,
        attention_backend=attention,
        num_anchors=asked.shape.anchors,
        loss_decay_gamma=peer_trainer.GAMMA,
    )
    checkout.check(model, "OnlineDFlashModel", "input_ids", "hidden_states", "loss_mask")
    model, update = _ready(checkout, asked, model=model, draft=draft, optimiser=optimiser, wrapper=wrapper)
    return Trainer(
        model=draft,
        embedding=embedding,
        head=head,
        masters=list(getattr(update, "fp32_params", [])),
        loss=_loss(model, asked),
        update=checkout.attribute(update, "step", of="BF16Optimizer"),
        failed=checkout.failed,
        parts={
            "anchors and mask": f"drawn and built in the step by its model, for {attention}",
            "wrapper": "FSDPTrainingBackend on one rank" if asked.fsdp else "none",
            "clipping": f"to {peer_trainer.CLIP:g}, by BF16Optimizer",
            "compiled": "by itself: its attention" if attention == "flex_attention" else "nothing",
            "left out": "logging, progress bar, checkpoints, data loading",
        },
    )


def _loss(model: nn.Module, asked: Asked) -> Callable[[], Tensor]:
    """A forward of the same rows every time."""
    rows = peer_trainer.rows_of(asked)

    def loss() -> Tensor:
        found = model(input_ids=rows.tokens_BS, hidden_states=rows.hidden_BSC, loss_mask=rows.mask_BS)
        return found[0] if isinstance(found, tuple) else found

    return loss


def _settings(checkout: Checkout, asked: Asked, drafter: Any, attention: str) -> Any:
    """The drafter's configuration, of the class that the drafter names."""
    shape = asked.shape
    configuration = checkout.attribute(drafter, "config_class", of="DFlashDraftModel")
    settings = configuration(
        **peer_trainer.target_settings(shape) | {"num_hidden_layers": shape.layers},
        layer_types=["full_attention"] * shape.layers,
        num_target_layers=TARGET_LAYERS,
        block_size=shape.block,
        dflash_config={"mask_token_id": shape.mask_token_id, "target_layer_ids": list(shape.layer_ids)},
    )
    settings._attn_implementation = attention  # noqa: SLF001 where transformers keeps it, as the trainer does
    return settings


def _ready(
    checkout: Checkout,
    asked: Asked,
    *,
    model: nn.Module,
    draft: nn.Module,
    optimiser: Any,
    wrapper: list[Any],
) -> tuple[nn.Module, Any]:
    """The model, wrapped where it was asked for, and its optimiser, which is made after that."""
    backend = None
    if wrapper:
        peer_trainer.join_alone(asked)
        made, settings = wrapper
        join = checkout.attribute(settings, "from_distributed", of="ParallelConfig")
        told = checkout.call(join, "ParallelConfig.from_distributed", param_dtype=asked.dtype)
        backend = checkout.call(made, "FSDPTrainingBackend", parallel_config=told)
        wrap = checkout.attribute(backend, "prepare_model", of="FSDPTrainingBackend")
        model = checkout.call(wrap, "FSDPTrainingBackend.prepare_model", model=model, optimizer_target=draft)
    update = checkout.call(
        optimiser,
        "BF16Optimizer",
        model=draft,
        lr=peer_trainer.LR,
        max_grad_norm=peer_trainer.CLIP,
        total_steps=peer_trainer.STEPS,
        warmup_ratio=0.04,
    )
    if backend is not None:
        take = checkout.attribute(backend, "set_optimizer", of="FSDPTrainingBackend")
        checkout.call(take, "FSDPTrainingBackend.set_optimizer", optimizer=update)
    return model, update
