"""Another trainer's step from a checkout: what is called, what is counted, what is told when it does not fit.

The checkouts are made up: packages with the names that the real ones have.
"""

from __future__ import annotations

import sys
import types
import warnings
from pathlib import Path

import pytest
import torch
from dflash_runner.errors import Kind, WorkerError, describe

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
import peer
import peer_watch
from shape import Shape

SHAPE = {
    **{"S": 16, "N": 3, "block": 4, "vocabulary": 32, "hidden": 8, "intermediate": 16},
    **{"layers": 2, "captured": 2, "heads": 2, "kv_heads": 1, "head_dim": 4, "dtype": "float32"},
}
DRAFTER = """
import types
import torch
class DFlashDraftModel(torch.nn.Module):
    config_class = types.SimpleNamespace
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.fc = torch.nn.Linear(2 * config.hidden_size, config.hidden_size)
"""
MODEL = """
import torch
from specforge.modeling.draft.dflash import DFlashDraftModel
class OnlineDFlashModel(torch.nn.Module):
    def __init__(self, draft_model, target_lm_head, target_embed_tokens, mask_token_id, block_size=16,
                 attention_backend="flex_attention", num_anchors=512, loss_decay_gamma=None):
        super().__init__()
        self.draft, self.head, self.embed = draft_model, target_lm_head, target_embed_tokens
        self.slots = block_size * num_anchors
        assert attention_backend == draft_model.config._attn_implementation == "sdpa"
    def forward(self, input_ids, hidden_states, loss_mask):
        print("a line on stdout")
        noise = self.embed(input_ids[:, :1].expand(-1, self.slots))
        out = noise + self.draft.fc(hidden_states).mean(1, keepdim=True)
        return self.head(out).logsumexp(-1).mean(), None, {}
"""
OPTIMISER = """
import torch
class BF16Optimizer:
    def __init__(self, model, lr, weight_decay=0.0, max_grad_norm=0.5, total_steps=1, warmup_ratio=0.1):
        self.params = list(model.parameters())
        self.fp32_params = [p.detach().clone().float() for p in self.params]
    steps = 0
    def step(self):
        assert all(p.grad is not None for p in self.params)
        for p in self.params:
            p.grad = None
        BF16Optimizer.steps += 1
"""
SPECFORGE = {
    "specforge/__init__.py": "",
    "specforge/core/__init__.py": "",
    "specforge/core/dflash.py": MODEL,
    "specforge/modeling/__init__.py": "",
    "specforge/modeling/draft/__init__.py": "",
    "specforge/modeling/draft/dflash.py": DRAFTER,
    "specforge/optimizer.py": OPTIMISER,
}
DEEPSPEC = {
    "deepspec/modeling/dspark/qwen3/config.py": "def build_draft_config(target_config, model_args): ...",
    "deepspec/modeling/dspark/qwen3/modeling.py": "class Qwen3DSparkModel: ...",
    "deepspec/modeling/dspark/loss.py": "def compute_dspark_loss(): ...",
    "deepspec/utils/optim.py": "if True:\n    class BF16Optimizer: ...",
    "deepspec/utils/metrics.py": "reset = print",
}


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Write a checkout, and measure its trainer in this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(peer, "Seen", lambda: types.SimpleNamespace(compiles=0, dense_calls=0))

    def run(files, *, trainer="specforge", **changed):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        question = {"trainer": trainer, "checkout": str(tmp_path), "shape": SHAPE, "rows": 4, "batch": 2}
        question |= {"fsdp": False, "compile": False, "device": "cpu", "threads": torch.get_num_threads()}
        return peer.measure(question | changed)

    yield run
    for name in [name for name in sys.modules if name.split(".")[0] in ("specforge", "deepspec")]:
        del sys.modules[name]


def with_model(old: str, new: str) -> dict[str, str]:
    """A checkout with another text in its model."""
    assert old in MODEL
    return SPECFORGE | {"specforge/core/dflash.py": MODEL.replace(old, new)}


def refused(measure, files, **changed) -> WorkerError:
    with pytest.raises(WorkerError) as told:
        measure(files, **changed)
    return told.value


@pytest.mark.parametrize(
    "model", ["specforge/core/dflash.py", "specforge/algorithms/common/dflash_family_model.py"]
)
def test_a_step_of_specforge(measure, model):
    """Wherever its two known versions keep the model."""
    files = dict(SPECFORGE)
    files[model] = files.pop("specforge/core/dflash.py")
    files |= {"specforge/algorithms/__init__.py": "", "specforge/algorithms/common/__init__.py": ""}
    found = measure(files)
    assert found["parameters"] == 2 * 8 * 8 + 8
    assert found["step_ms"] > 0 and found["alone_ms"] > 0 and found["first_s"] > 0 and found["build_s"] > 0
    assert found["peak_bytes"] > 1 << 20
    parts = found["parts"]
    assert parts["noise embedding"].startswith("12 tokens a row") and parts["head"].startswith(
        "12 slots a row"
    )
    assert parts["optimiser"] == "on float32 masters" and parts["wrapper"] == "none"
    assert sys.modules["specforge.optimizer"].BF16Optimizer.steps == 3 + 2 + 2  # of two rows each


BACKEND = """
class ParallelConfig:
    @classmethod
    def from_distributed(cls, *, param_dtype):
        import torch.distributed as dist
        assert dist.get_world_size() == 1
        return cls()
class FSDPTrainingBackend:
    told = []
    def __init__(self, parallel_config, *, optimizer_factory=None):
        assert isinstance(parallel_config, ParallelConfig)
    def prepare_model(self, model, *, wrap=True, optimizer_target=None):
        self.told += [type(model).__name__, type(optimizer_target).__name__]
        return model
    def set_optimizer(self, optimizer):
        self.told.append(type(optimizer).__name__)
"""


def test_specforge_is_wrapped_as_it_ships(measure):
    """By its own backend, which is told of the optimiser; without one, by name what is missing."""
    missing = refused(measure, SPECFORGE, fsdp=True)
    assert (
        "find FSDPTrainingBackend of SpecForge: want it in specforge/training/backend.py" in missing.message
    )
    files = {"specforge/training/__init__.py": "", "specforge/training/backend.py": BACKEND}
    try:
        found = measure(SPECFORGE | files, fsdp=True)
    finally:
        torch.distributed.destroy_process_group()
    assert found["parts"]["wrapper"] == "FSDPTrainingBackend on one rank"
    told = sys.modules["specforge.training.backend"].FSDPTrainingBackend.told
    assert told == ["OnlineDFlashModel", "DFlashDraftModel", "BF16Optimizer"]


def test_a_name_that_is_not_there(measure):
    error = refused(measure, with_model("OnlineDFlash", "Offline"))
    assert error.kind is Kind.NOT_FOUND
    assert "find OnlineDFlashModel of SpecForge: want it in specforge/core/dflash.py or" in error.message
    assert error.message.endswith("got specforge/core/dflash.py without it")
    assert "40d8feff" in error.hint
    assert "got no such file" in refused(measure, DEEPSPEC, trainer="specforge", checkout="/").message


def test_other_parameters(measure):
    error = refused(measure, with_model("num_anchors", "anchors"))
    assert error.kind is Kind.NOT_FOUND
    assert "call OnlineDFlashModel of SpecForge in specforge/core/dflash.py" in error.message
    assert "unexpected keyword argument 'num_anchors'" in error.message


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            SPECFORGE | {"specforge/modeling/draft/dflash.py": DRAFTER.replace("config_class", "settings")},
            "find DFlashDraftModel.config_class of SpecForge in specforge/modeling/draft/dflash.py: want",
        ),
        (
            SPECFORGE | {"specforge/optimizer.py": OPTIMISER.replace("def step", "def apply")},
            "find BF16Optimizer.step of SpecForge in specforge/optimizer.py: want an attribute of that name",
        ),
    ],
)
def test_an_attribute_that_is_not_there(measure, files, says):
    """Of a class, and of what was made of one: told with the class's file."""
    error = refused(measure, files)
    assert error.kind is Kind.NOT_FOUND and says in error.message and "40d8feff" in error.hint


def test_parameters_that_a_forward_wants_besides(measure):
    error = refused(measure, with_model("loss_mask)", "loss_mask, position_ids)"))
    assert error.kind is Kind.NOT_FOUND and "missing a required argument: 'position_ids'" in error.message


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "import specforge.other",  # which imports it
            "want package no_such_package, which specforge/other.py:1 imports, got none installed",
        ),
        ("import specforge.gone", "want module specforge.gone, which specforge/optimizer.py:1 imports"),
        (
            "from torch import no_such_name",
            "cannot import name 'no_such_name' from 'torch'",
        ),
    ],
)
def test_an_import_that_lacks_something(measure, line, says):
    files = {"specforge/optimizer.py": f"{line}\n{OPTIMISER}"}
    files["specforge/other.py"] = "import no_such_package.comm"
    error = refused(measure, SPECFORGE | files)
    assert error.kind is Kind.NOT_FOUND and says in error.message
    assert ":1" in error.message and error.hint


def test_an_import_that_fails(measure):
    error = refused(measure, SPECFORGE | {"specforge/optimizer.py": f"1 / 0\n{OPTIMISER}"})
    assert error.kind is Kind.INTERNAL
    assert "ZeroDivisionError: division by zero (specforge/optimizer.py:1)" in error.message
    error = refused(measure, SPECFORGE | {"specforge/optimizer.py": "if 0:\n    class BF16Optimizer: ..."})
    assert error.kind is Kind.NOT_FOUND and "in specforge/optimizer.py once that is run" in error.message
    error = refused(measure, SPECFORGE | {"specforge/optimizer.py": "def ("})
    assert error.kind is Kind.INVALID and "read specforge/optimizer.py of SpecForge" in error.message


def test_another_number_of_blocks(measure):
    error = refused(measure, with_model("block_size * num_anchors", "block_size * (num_anchors - 1)"))
    assert error.kind is Kind.INVALID
    assert "want 2 rows of 3 blocks of 4, 24 tokens embedded, got 16" in error.message


def test_a_step_that_fails(measure):
    error = refused(measure, with_model('print("a line on stdout")', "torch.ones(2) @ torch.ones(3)"))
    assert error.kind is Kind.INTERNAL
    assert "run a step of SpecForge: RuntimeError" in error.message
    assert "(specforge/core/dflash.py:12)" in error.message and "torch 2" in error.hint


def test_a_loss_that_is_none(measure):
    error = refused(measure, with_model("mean(), None", "mean() / 0, 1"))
    assert "read first loss of the trainer: want a number, got inf" in error.message


def test_a_loss_that_is_no_number(measure):
    error = refused(measure, with_model(".mean(), None", ", None"))
    assert error.kind is Kind.NOT_FOUND and "want one number, got Tensor" in error.message


def test_memory_that_runs_out(measure):
    """It stays what it is, so that whoever asked can tell it from a mistake."""
    greedy = with_model('print("a line on stdout")', 'raise torch.OutOfMemoryError("CUDA out of memory")')
    with pytest.raises(torch.OutOfMemoryError) as told:
        measure(greedy)
    assert describe(told.value).kind is Kind.EXHAUSTED


def test_deepspec_wants_a_gpu(measure):
    """Once its names are there: one under a condition, one assigned."""
    error = refused(measure, DEEPSPEC, trainer="deepspec")
    assert error.kind is Kind.EXHAUSTED and "want a GPU for DeepSpec" in error.message
    without = DEEPSPEC | {"deepspec/utils/metrics.py": ""}
    assert "find reset of DeepSpec" in refused(measure, without, trainer="deepspec").message


def test_dense_attention_is_counted(monkeypatch):
    flex = pytest.importorskip("torch._higher_order_ops.flex_attention")
    callbacks = pytest.importorskip("torch._dynamo.callback").callback_handler.start_callbacks
    monkeypatch.setattr(flex, "_math_attention_inner", flex._math_attention_inner)  # noqa: SLF001 put back
    seen = peer_watch.Seen()
    callbacks.remove(seen._compiled)  # noqa: SLF001
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.ones(1, 1, 4, 4)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # that it is not compiled
        flex_attention(q, q, q)
    assert seen.dense_calls == 1 and seen.compiles == 0


def test_the_reference_shape_of_a_trainer():
    shape = Shape.told(SHAPE | {"vocabulary": 151_936, "captured": 5})
    assert shape.mask_token_id == 151_935 and shape.layer_ids == (1, 9, 17, 25, 33)
