"""The optimiser: AdamW as torch does it, on masters that can be saved, moved and summed."""

from __future__ import annotations

import pytest
import torch
from dflash_runner.errors import WorkerError
from dflash_runner.optim import AdamWConfig, Optimiser
from numerics import drafter_config, make_drafter
from torch import Tensor, nn

CONFIG = drafter_config()
ADAMW = AdamWConfig(beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)


def gradients(drafter: nn.Module, *, seed: int) -> dict[str, Tensor]:
    """Random gradients by name."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(p.shape, generator=generator) for name, p in sorted(drafter.named_parameters())}


def backward(drafter: nn.Module, given: dict[str, Tensor]) -> None:
    """Let autograd produce exactly the given gradients."""
    sum((p.float() * given[name]).sum() for name, p in drafter.named_parameters()).backward()


def apply(drafter: nn.Module, optimiser: Optimiser, *, seed: int, lr: float = 1e-2) -> Tensor:
    """One step; its norm."""
    optimiser.clear()
    backward(drafter, gradients(drafter, seed=seed))
    norm = optimiser.global_norm()
    optimiser.clip(norm, limit=1.0)
    optimiser.step(lr=lr)
    return norm


def test_steps_equal_torch_adamw_and_clipping() -> None:
    ours, plain = make_drafter(CONFIG), make_drafter(CONFIG)
    optimiser = Optimiser(ours, config=ADAMW)
    moments = {name: [torch.zeros_like(p), torch.zeros_like(p)] for name, p in plain.named_parameters()}
    for count in range(4):
        norm = apply(ours, optimiser, seed=count)
        plain.zero_grad()
        backward(plain, gradients(plain, seed=count))
        want = nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        torch.testing.assert_close(norm, want, rtol=1e-6, atol=0.0)
        for name, parameter in plain.named_parameters():
            kernel(parameter, *moments[name], count=count + 1)
    for (name, got), want in zip(ours.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fused_kernel_equals_the_plain_arithmetic(dtype: torch.dtype) -> None:
    """To float32 rounding, moments and masters alike: a GPU's step is a CPU's."""
    drafters = [make_drafter(CONFIG).to(dtype) for _ in range(2)]
    fused, plain = (
        Optimiser(d, config=ADAMW, fused=way) for d, way in zip(drafters, (True, False), strict=True)
    )
    for seed in range(4):
        norms = [apply(one, two, seed=seed) for one, two in zip(drafters, (fused, plain), strict=True)]
        assert torch.equal(*norms)
    want = plain.state_tensors()
    moved = False
    for name, got in fused.state_tensors().items():
        moved |= not torch.equal(got, want[name])
        torch.testing.assert_close(got, want[name], rtol=2e-6, atol=1e-7, msg=name)
    assert moved, "both took the same way"


@torch.no_grad()
def kernel(parameter: nn.Parameter, mean: Tensor, square: Tensor, *, count: int) -> None:
    """One step of torch's own AdamW kernel."""
    torch._fused_adamw_(  # not torch.optim, whose import takes longer than this module
        [parameter],
        [parameter.grad],
        [mean],
        [square],
        [],
        [torch.tensor(float(count))],
        lr=1e-2,
        beta1=ADAMW.beta1,
        beta2=ADAMW.beta2,
        weight_decay=ADAMW.weight_decay if parameter.ndim >= 2 else 0.0,
        eps=ADAMW.epsilon,
        amsgrad=False,
        maximize=False,
    )


@pytest.mark.parametrize("limit", [1e-3, 0.5, 1e6])
def test_clipping_is_that_of_torch(limit: float) -> None:
    ours, plain = make_drafter(CONFIG), make_drafter(CONFIG)
    optimiser = Optimiser(ours, config=ADAMW)
    small = {name: 1e-4 * gradient for name, gradient in gradients(plain, seed=0).items()}
    for drafter in (ours, plain):
        backward(drafter, small)
    optimiser.weight.add_(3.0)
    optimiser.clip(optimiser.global_norm(), limit=limit)
    nn.utils.clip_grad_norm_(plain.parameters(), limit)
    for got, want in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-6, atol=0.0)
    assert float(optimiser.weight) == 3.0


def test_decay_pulls_matrices_and_leaves_norms() -> None:
    drafter = make_drafter(CONFIG)
    before = {name: p.detach().clone() for name, p in drafter.named_parameters()}
    Optimiser(drafter, config=ADAMW).step(lr=0.5)  # no gradient: decay alone
    for name, parameter in drafter.named_parameters():
        factor = 1 - 0.5 * 0.1 if parameter.ndim >= 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor)


def test_state_that_was_moved_goes_on_bit_for_bit() -> None:
    first, second = make_drafter(CONFIG), make_drafter(CONFIG, seed=8)
    one, two = Optimiser(first, config=ADAMW), Optimiser(second, config=ADAMW)
    for seed in range(3):
        apply(first, one, seed=seed)
    moved = {name: tensor.clone() for name, tensor in one.state_tensors().items()}
    assert int(moved["step"]) == 3 == one.steps
    assert len(moved) == 3 * len(first.state_dict()) + 1
    two.load_state_tensors(moved)
    for seed in range(3, 6):
        apply(first, one, seed=seed)
        apply(second, two, seed=seed)
    got = two.state_tensors()
    assert all(torch.equal(tensor, got[name]) for name, tensor in one.state_tensors().items())
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))


def test_written_views_are_taken_over() -> None:
    first, second = make_drafter(CONFIG), make_drafter(CONFIG, seed=8)
    one, two = Optimiser(first, config=ADAMW), Optimiser(second, config=ADAMW)
    apply(first, one, seed=0)
    for which in ("master", "exp_avg", "exp_avg_sq"):
        for name, view in two.part(which).items():
            view.copy_(one.part(which)[name])
    two.loaded(steps=1)
    apply(first, one, seed=1)
    apply(second, two, seed=1)
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("fault", ["missing", "unknown", "shape", "dtype"])
def test_other_state_is_refused_and_changes_nothing(fault: str) -> None:
    drafter = make_drafter(CONFIG)
    optimiser = Optimiser(drafter, config=ADAMW)
    state = {name: tensor.clone() + 1 for name, tensor in optimiser.state_tensors().items()}
    name = "exp_avg.fc.weight"
    match fault:
        case "missing":
            del state[name]
        case "unknown":
            state["exp_avg.other"] = state[name]
        case "shape":
            state[name] = state[name].T.contiguous()
        case "dtype":
            state[name] = state[name].double()
    before = {name: p.detach().clone() for name, p in drafter.named_parameters()}
    with pytest.raises(WorkerError, match="load state"):
        optimiser.load_state_tensors(state)
    assert all(torch.equal(p, before[name]) for name, p in drafter.named_parameters())
    assert optimiser.steps == 0


def test_float32_parameters_are_the_masters() -> None:
    drafter = make_drafter(CONFIG)
    before = {name: p.detach().clone() for name, p in drafter.named_parameters()}
    optimiser = Optimiser(drafter, config=ADAMW)
    for name, parameter in drafter.named_parameters():
        assert parameter.data_ptr() == optimiser.masters()[name].data_ptr()
        assert parameter.data_ptr() % 64 == 0  # as torch allocates: same kernels, same bits
        assert torch.equal(parameter, before[name])


def test_bfloat16_parameters_follow_float32_masters() -> None:
    narrow, wide = make_drafter(CONFIG).bfloat16(), make_drafter(CONFIG).bfloat16().float()
    one, two = Optimiser(narrow, config=ADAMW), Optimiser(wide, config=ADAMW)
    start = narrow.fc.weight.detach().clone()
    for _ in range(3):  # micro-steps whose sum bfloat16 would round
        given = {name: g.bfloat16().float() for name, g in gradients(wide, seed=1).items()}
        backward(narrow, given)
        backward(wide, given)
    torch.testing.assert_close(one.gradient_P, two.gradient_P, rtol=1e-6, atol=1e-6)
    for optimiser in (one, two):
        optimiser.step(lr=1e-5)  # below what a bfloat16 weight can take
    for name, master in one.masters().items():
        torch.testing.assert_close(master, two.masters()[name], rtol=1e-6, atol=1e-8)
        assert torch.equal(narrow.get_parameter(name), master.bfloat16())
    assert not torch.equal(one.masters()["fc.weight"], start.float())


def test_gradients_add_up_and_clear_drops_them() -> None:
    drafter = make_drafter(CONFIG)
    optimiser = Optimiser(drafter, config=ADAMW)
    given = gradients(drafter, seed=0)
    backward(drafter, given)
    backward(drafter, given)
    optimiser.weight.add_(3.0)
    assert all(torch.equal(p.grad, 2 * given[name]) for name, p in drafter.named_parameters())
    assert float(optimiser.gradient_P[-1]) == 3.0
    drafter.zero_grad()  # somebody else's habit must not detach the buffer for good
    optimiser.clear()
    assert not optimiser.gradient_P.any()
    backward(drafter, given)
    assert optimiser.gradient_P[: given["fc.weight"].numel()].any()


def test_rescale_divides_by_the_weight_and_keeps_it() -> None:
    drafter = make_drafter(CONFIG)
    optimiser = Optimiser(drafter, config=ADAMW)
    backward(drafter, gradients(drafter, seed=0))
    before = drafter.fc.weight.grad.clone()
    optimiser.weight.add_(5.0)
    optimiser.rescale(20.0)
    torch.testing.assert_close(drafter.fc.weight.grad, before * 4)
    assert float(optimiser.weight) == 5.0


def test_no_weight_at_all_is_not_finite() -> None:
    drafter = make_drafter(CONFIG)
    optimiser = Optimiser(drafter, config=ADAMW)
    optimiser.rescale(20.0)
    assert not torch.isfinite(optimiser.global_norm())
