"""The optimiser's step on a real GPU: its values, its kernels, and that nothing in it waits.

Run alone: `python -m pytest -m gpu python/tests/test_optim_gpu.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from dflash_runner import config
from dflash_runner.optim import Optimiser
from dflash_runner.trainer import Trainer
from dflash_runner.update import OnePass, Passes
from numerics import drafter_config, make_drafter
from safetensors.torch import save_file
from test_flex_gpu import HIDDEN, VOCABULARY, message
from test_optim import ADAMW, apply, backward, follow, gradients
from torch import Tensor, nn
from torch.autograd import DeviceType

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # the compiler's own, of which some depend on the machine
]

CONFIG = drafter_config(hidden_size=128, intermediate_size=320, heads=8, kv_heads=2, head_dim=16)
BYTES = 30  # of an element that one pass moves: four float32 read, three and a bfloat16 written


@pytest.fixture(autouse=True)
def compiler() -> Iterator[None]:
    """Fresh for each test, whatever another one compiled or sealed."""
    torch.compiler.set_stance("default")
    torch._dynamo.reset()  # noqa: SLF001
    yield
    torch.compiler.set_stance("default")


def on_gpu() -> nn.Module:
    """A drafter in bfloat16."""
    return make_drafter(CONFIG).to("cuda", torch.bfloat16)


@pytest.mark.parametrize("backend", ["inductor", None])
def test_steps_equal_the_oracle(backend: str | None) -> None:
    """One pass, and torch's fused kernel, which is left where nothing may be compiled."""
    drafter = on_gpu()
    optimiser = Optimiser(drafter, config=ADAMW, backend=backend)
    assert isinstance(optimiser._update, OnePass if backend else Passes)  # noqa: SLF001
    follow(drafter, optimiser)


def test_both_ways_give_the_same_to_rounding_and_one_pass_the_same_bits_twice() -> None:
    states = []
    for backend in ("inductor", None, "inductor"):
        drafter = on_gpu()
        optimiser = Optimiser(drafter, config=ADAMW, backend=backend)
        for seed in range(4):
            apply(drafter, optimiser, seed=seed)
        states.append(optimiser.state_tensors())
    one, fused, again = states
    moved = False
    for name, tensor in one.items():
        assert torch.equal(tensor, again[name]), name
        moved |= not torch.equal(tensor, fused[name])
        torch.testing.assert_close(tensor, fused[name], rtol=5e-6, atol=1e-7, msg=name)
    assert moved, "both took the same way"


def test_a_step_is_two_kernels_and_never_compiled_again() -> None:
    """One for what decays, one for what does not; scaling, clipping and rounding have none of their own."""
    drafter = on_gpu()
    optimiser = Optimiser(drafter, config=ADAMW, backend="inductor")
    apply(drafter, optimiser, seed=0)
    torch.compiler.set_stance("fail_on_recompile")
    for seed in range(1, 4):
        apply(drafter, optimiser, seed=seed, lr=1e-2 / seed)
    torch.cuda.synchronize()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    ) as seen:
        optimiser.step(lr=3e-4)
        torch.cuda.synchronize()
    ran = [event.name for event in seen.events() if event.device_type == DeviceType.CUDA]
    kernels = [name for name in ran if not name.lower().startswith(("memcpy", "memset"))]
    assert len(kernels) == 2 and all(name.startswith("triton_") for name in kernels), ran
    assert len(ran) <= 3, ran  # and the copy of the step's numbers


def test_nothing_between_the_sum_and_the_update_waits_for_the_device() -> None:
    """torch raises at every wait that it knows of."""
    drafter = on_gpu()
    optimiser = Optimiser(drafter, config=ADAMW, backend="inductor")
    apply(drafter, optimiser, seed=0)
    optimiser.clear()
    given = gradients(drafter, seed=1)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError):
            float(optimiser.weight)  # the mode really tells
        backward(drafter, given)
        optimiser.weight.add_(3.0)
        optimiser.rescale(24.0)
        norm = optimiser.global_norm()
        optimiser.clip(norm, limit=1.0)
        optimiser.step(lr=1e-3)
        optimiser.clear()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(norm)


def test_a_dropped_gradient_is_never_read() -> None:
    """What a broken step left in the buffer is written over, or zeroed where nothing comes."""
    drafter = on_gpu()
    optimiser = Optimiser(drafter, config=ADAMW, backend="inductor")
    given = gradients(drafter, seed=0)
    backward(drafter, {name: g * float("nan") for name, g in given.items()})
    optimiser.clear()
    assert not optimiser.gradient_P.any()
    backward(drafter, {name: g * float("nan") for name, g in given.items()})
    optimiser.clear()
    (drafter.fc.weight.float() * given["fc.weight"]).sum().backward()
    want = given["fc.weight"].bfloat16().double().norm()
    torch.testing.assert_close(optimiser.global_norm().double(), want, rtol=5e-6, atol=0.0)


class Large(nn.Module):
    """One matrix and one norm."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        device = {"device": "cuda", "dtype": torch.bfloat16}
        self.fc = nn.Linear(1 << 12, elements >> 12, bias=False, **device)
        self.norm = nn.Parameter(torch.ones(1 << 12, **device))


@pytest.mark.parametrize("millions", [1050, 2200])
def test_a_large_drafter_is_updated_to_its_last_element(millions: int) -> None:
    """A billion elements, and more than 32 bits count. Tells the rate that was reached."""
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < millions * 10**6 * 26:
        pytest.skip(f"needs {millions * 26 / 1000:.0f} GB of free GPU memory")
    drafter = Large(millions * 10**6)
    with torch.no_grad():
        drafter.fc.weight.fill_(0.5)
    optimiser = Optimiser(drafter, config=ADAMW, backend="inductor")
    last = drafter.fc.weight.numel() - 3
    optimiser.gradient_P.fill_(0.25)
    optimiser.gradient_P[last : last + 3] = -0.25
    optimiser.step(lr=1e-2)
    want = 0.5 * (1 - 1e-2 * ADAMW.weight_decay)
    master = optimiser.masters()["fc.weight"].view(-1)
    front, back = master[:last], master[last:]
    assert equal_to(front, want - 1e-2) and equal_to(back, want + 1e-2)
    assert equal_to(drafter.fc.weight.detach().view(-1)[last:], float(back[0].bfloat16()))
    assert equal_to(drafter.norm.detach(), float(torch.tensor(1 - 1e-2).bfloat16()))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    optimiser.step(lr=1e-2)
    end.record()
    torch.cuda.synchronize()
    taken = start.elapsed_time(end)
    rate = master.numel() * BYTES / taken / 1e9
    print(f"update of {master.numel()} elements: {taken:.2f} ms, {rate:.2f} TB/s")  # noqa: T201


def equal_to(tensor: Tensor, value: float) -> bool:
    """Whether every element is that, to float32 rounding."""
    low, high = tensor.aminmax()
    return abs(float(low) - value) < 1e-6 and abs(float(high) - value) < 1e-6


@pytest.mark.parametrize(("attention", "way"), [("flex", OnePass), ("sdpa", Passes)])
def test_a_drafter_that_compiles_nothing_else_does_not_compile_its_step(
    tmp_path: Path, attention: str, way: type
) -> None:
    """Its certificate promises no graph."""
    embedding = torch.zeros(VOCABULARY, HIDDEN, dtype=torch.bfloat16)
    save_file({"model.embed_tokens.weight": embedding}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    asked = message(tmp_path)
    asked.attention = attention
    trainer = Trainer(config.from_message(asked))
    assert type(trainer.optimiser._update) is way  # noqa: SLF001
