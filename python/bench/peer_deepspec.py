"""DeepSpec's step for its DFlash configurations, by what its checkout publishes.

Known: afdfa7c9. Source: https://github.com/deepseek-ai/DeepSpec; `config/dflash/*.py` says what of a DSpark
is switched off for DFlash, its training loop calls model, loss, backward, clipping and optimiser as here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peer_trainer
import torch
from dflash_runner.errors import Kind, WorkerError
from peer_checkout import Checkout
from peer_trainer import Asked, Trainer
from torch import Tensor, nn

KNOWN = "DeepSpec is known as of afdfa7c9 (deepseek-ai/DeepSpec)"


class Settings(dict):
    """Read by name and asked by `in`, as the trainer's configurations are."""

    __getattr__ = dict.__getitem__


def build(asked: Asked) -> Trainer:
    """The Qwen3 model of DSpark with Markov head, confidence head and distillation off."""
    checkout = Checkout(asked.checkout, trainer="DeepSpec", known=KNOWN)
    found = [
        checkout.find("build_draft_config", "deepspec.modeling.dspark.qwen3.config"),
        checkout.find("Qwen3DSparkModel", "deepspec.modeling.dspark.qwen3.modeling"),
        checkout.find("compute_dspark_loss", "deepspec.modeling.dspark.loss"),
        checkout.find("BF16Optimizer", "deepspec.utils.optim"),
        checkout.find("reset", "deepspec.utils.metrics"),
    ]
    if asked.device == "cpu":
        raise WorkerError(
            Kind.EXHAUSTED,
            "use device cpu: want a GPU for DeepSpec, which has compiled attention alone, without a backward "
            "on a CPU",
            hint="--device cuda on a machine with a GPU",
        )
    configure, drafter, objective, optimiser, forget = (checkout.load(one) for one in found)
    peer_trainer.join_alone(asked)
    draft = _drafter(checkout, asked, configure, drafter)
    model = _wrapped(draft, asked)
    settings = {"lr": peer_trainer.LR, "total_steps": peer_trainer.STEPS, "warmup_ratio": 0.04}
    update = checkout.call(optimiser, "BF16Optimizer", model=draft, **settings)
    trained = [one for one in draft.parameters() if one.requires_grad]
    clip = model.clip_grad_norm_ if asked.fsdp else lambda most: nn.utils.clip_grad_norm_(trained, most)

    apply = checkout.attribute(update, "step", of="BF16Optimizer")

    def step() -> None:
        clip(peer_trainer.CLIP)
        apply()

    return Trainer(
        model=draft,
        embedding=checkout.attribute(draft, "embed_tokens", of="Qwen3DSparkModel"),
        head=checkout.attribute(draft, "lm_head", of="Qwen3DSparkModel"),
        masters=list(getattr(update, "fp32_params", [])),
        loss=_loss(checkout, asked, model=model, draft=draft, objective=objective, forget=forget),
        update=step,
        failed=checkout.failed,
        parts={
            "anchors and mask": "drawn and built in the step by its model, for flex_attention",
            "wrapper": "FSDP on one rank, no_shard" if asked.fsdp else "none",
            "clipping": f"to {peer_trainer.CLIP:g}, by {'FSDP' if asked.fsdp else 'torch'}",
            "compiled": "the model, dynamic=True" if asked.compile else "transformers' attention alone",
            "left out": "logging, checkpoints, data loading, Markov and confidence heads, distillation",
        },
    )


def _loss(
    checkout: Checkout, asked: Asked, *, model: nn.Module, draft: nn.Module, objective: Any, forget: Any
) -> Callable[[], Tensor]:
    """A forward of the same rows every time; cross-entropy alone, as for DFlash."""
    rows = peer_trainer.rows_of(asked)
    weighted = {"loss_decay_gamma": peer_trainer.GAMMA, "ce_loss_alpha": 1.0, "l1_loss_alpha": 0.0}
    weighted |= {"confidence_head_alpha": 0.0}
    checkout.check(draft, "Qwen3DSparkModel", "input_ids", "target_hidden_states", "loss_mask")
    checkout.check(objective, "compute_dspark_loss", "outputs", *weighted)

    def loss() -> Tensor:
        forget()  # what the trainer's own logger empties every few steps
        outputs = model(
            input_ids=rows.tokens_BS, target_hidden_states=rows.hidden_BSC, loss_mask=rows.mask_BS
        )
        return objective(outputs=outputs, **weighted)

    return loss


def _drafter(checkout: Checkout, asked: Asked, configure: Any, drafter: Any) -> nn.Module:
    """A drafter on random weights, with a target's frozen embedding and head copied into it."""
    from transformers import Qwen3Config

    shape = asked.shape
    settings = checkout.call(
        configure,
        "build_draft_config",
        target_config=Qwen3Config(**peer_trainer.target_settings(shape)),
        model_args=Settings(
            num_draft_layers=shape.layers,
            target_layer_ids=list(shape.layer_ids),
            block_size=shape.block,
            mask_token_id=shape.mask_token_id,
            num_anchors=shape.anchors,
            confidence_head_alpha=0.0,
            markov_rank=0,
        ),
    )
    with torch.device(asked.device):
        draft = checkout.call(drafter, "Qwen3DSparkModel", config=settings).to(dtype=asked.dtype).train()
    embedding, head = peer_trainer.embedding_and_head(asked)
    checkout.call(
        checkout.attribute(draft, "initialize_embeddings_and_head", of="Qwen3DSparkModel"),
        "initialize_embeddings_and_head",
        embed_tokens=embedding,
        lm_head=head,
        freeze=True,
    )
    return draft


def _wrapped(draft: nn.Module, asked: Asked) -> nn.Module:
    """Compiled and wrapped as the trainer's configurations ask, each where it was asked for."""
    model = torch.compile(draft, dynamic=True) if asked.compile else draft
    if not asked.fsdp:
        return model
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy

    return FullyShardedDataParallel(
        model,
        use_orig_params=True,
        mixed_precision=MixedPrecision(param_dtype=asked.dtype, buffer_dtype=asked.dtype),
        sharding_strategy=ShardingStrategy.NO_SHARD,
    )
