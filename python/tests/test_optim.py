"""The optimiser: AdamW as torch does it, on masters that can be saved, moved and summed."""

from __future__ import annotations

import pytest
import torch
from dflash_runner.errors import WorkerError
from dflash_runner.optim import Optimiser
from dflash_runner.update import AdamWConfig, Passes
from dflash_runner.watch import graphs
from numerics import drafter_config, make_drafter
from torch import Tensor, nn

CONFIG = drafter_config()
ADAMW = AdamWConfig(beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)
NORM = 1e-6  # relative, of a norm summed in float32
STATE, ABSOLUTE = 5e-6, 1e-8  # of masters and moments after four steps in float32


def gradients(drafter: nn.Module, *, seed: int) -> dict[str, Tensor]:
    """Random gradients by name."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(p.shape, generator=generator).to(p.device)
        for name, p in sorted(drafter.named_parameters())
    }


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


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_passes_equal_the_oracle(dtype: torch.dtype, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain arithmetic, and torch's fused kernel, which is a GPU's where nothing may be compiled."""
    drafter = make_drafter(CONFIG).to(dtype)
    optimiser = Optimiser(drafter, config=ADAMW)
    calls = []
    apply_fused = torch._fused_adamw_
    monkeypatch.setattr(torch, "_fused_adamw_", lambda *a, **k: (calls.append(a), apply_fused(*a, **k)))
    if fused:
        optimiser._update = Passes(ADAMW, fused=True)  # noqa: SLF001
    follow(drafter, optimiser)
    assert len(calls) == (8 if fused else 0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_one_pass_equals_the_oracle(backend: str) -> None:
    drafter = make_drafter(CONFIG).bfloat16()
    follow(drafter, Optimiser(drafter, config=ADAMW, backend=backend))


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)  # torch's own
def test_one_pass_compiled_equals_the_oracle_and_compiles_once() -> None:
    """By torch's own compiler: a graph for what decays and one for what does not, none for a new step."""
    drafter = make_drafter(CONFIG).bfloat16()
    optimiser = Optimiser(drafter, config=ADAMW, backend="inductor")
    before = graphs()
    follow(drafter, optimiser, steps=1)
    assert graphs() - before == 2
    torch.compiler.set_stance("fail_on_recompile")
    try:
        for seed in range(1, 4):
            apply(drafter, optimiser, seed=seed, lr=1e-3 / seed)
    finally:
        torch.compiler.set_stance("default")


def test_one_pass_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a drafter whose elements 32-bit numbers do not count."""
    states = []
    for piece in (1 << 28, 1000):
        monkeypatch.setattr("dflash_runner.update._PIECE", piece)
        drafter = make_drafter(CONFIG).bfloat16()
        optimiser = Optimiser(drafter, config=ADAMW, backend="eager")
        calls = []
        update = optimiser._update._update  # noqa: SLF001
        monkeypatch.setattr(
            optimiser._update,  # noqa: SLF001
            "_update",
            lambda *a, calls=calls, update=update: (calls.append(len(a[0])), update(*a)),
        )
        for seed in range(2):
            apply(drafter, optimiser, seed=seed)
        states.append(optimiser.state_tensors())
        assert max(calls) <= piece and (len(calls) == 4) == (piece > 1000)
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_one_pass_with_masters_for_parameters_is_refused() -> None:
    drafter = make_drafter(CONFIG)
    with pytest.raises(AssertionError, match="must not be the masters"):
        Optimiser(drafter, config=ADAMW, backend="eager").step(lr=1e-3)


def follow(drafter: nn.Module, optimiser: Optimiser, *, steps: int = 4) -> None:
    """Steps of rescaled and clipped gradients beside the same in float64: each within float32 rounding."""
    exact = {name: master.double() for name, master in optimiser.masters().items()}
    moments = {name: [torch.zeros_like(m), torch.zeros_like(m)] for name, m in exact.items()}
    for count in range(1, steps + 1):
        optimiser.clear()
        given = {name: g.to(drafter.fc.weight.dtype) for name, g in gradients(drafter, seed=count).items()}
        backward(drafter, {name: g.float() for name, g in given.items()})
        optimiser.weight.add_(3.0 * count)
        optimiser.rescale(24.0)
        norm = optimiser.global_norm()
        optimiser.clip(norm, limit=1.0)
        optimiser.step(lr=1e-2 / count)
        scaled = {name: g.double() * 8.0 / count for name, g in given.items()}
        want = torch.cat([g.flatten() for g in scaled.values()]).norm()
        torch.testing.assert_close(norm.double(), want, rtol=NORM, atol=0.0)
        for name, master in exact.items():
            oracle(master, scaled[name] / want, moments[name], count=count, lr=1e-2 / count)
    got = optimiser.state_tensors()
    for name, master in exact.items():
        for part, tensor in zip(("master", "exp_avg", "exp_avg_sq"), (master, *moments[name]), strict=True):
            named = f"{part}.{name}"
            torch.testing.assert_close(got[named].double(), tensor, rtol=STATE, atol=ABSOLUTE, msg=named)
        rounded = got[f"master.{name}"].to(drafter.fc.weight.dtype)
        assert torch.equal(drafter.get_parameter(name), rounded), name
    assert int(got["step"]) == steps == optimiser.steps


def oracle(master: Tensor, gradient: Tensor, moments: list[Tensor], *, count: int, lr: float) -> None:
    """AdamW as its paper writes it (arXiv 1711.05101, algorithm 2, decay not scheduled), in float64."""
    mean, square = moments
    mean.copy_(ADAMW.beta1 * mean + (1 - ADAMW.beta1) * gradient)
    square.copy_(ADAMW.beta2 * square + (1 - ADAMW.beta2) * gradient**2)
    unbiased = mean / (1 - ADAMW.beta1**count), square / (1 - ADAMW.beta2**count)
    decay = ADAMW.weight_decay if master.ndim >= 2 else 0.0
    master.sub_(lr * (unbiased[0] / (unbiased[1].sqrt() + ADAMW.epsilon) + decay * master))


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


def test_narrow_parameters_are_one_buffer() -> None:
    """Which the application writes whole; each is 64 bytes from the next, as torch allocates."""
    drafter = make_drafter(CONFIG).bfloat16()
    before = {name: p.detach().clone() for name, p in drafter.named_parameters()}
    Optimiser(drafter, config=ADAMW)
    storages = {parameter.untyped_storage().data_ptr() for parameter in drafter.parameters()}
    assert len(storages) == 1
    for name, parameter in drafter.named_parameters():
        assert parameter.data_ptr() % 64 == 0
        assert torch.equal(parameter, before[name])


def test_bfloat16_parameters_follow_float32_masters() -> None:
    narrow, wide = make_drafter(CONFIG).bfloat16(), make_drafter(CONFIG).bfloat16().float()
    one, two = Optimiser(narrow, config=ADAMW), Optimiser(wide, config=ADAMW)
    start = narrow.fc.weight.detach().clone()
    for _ in range(3):  # micro-steps whose sum bfloat16 would round
        given = {name: g.bfloat16().float() for name, g in gradients(wide, seed=1).items()}
        backward(narrow, given)
        backward(wide, given)
    sums = [float(optimiser.gradient_P.double().norm()) for optimiser in (one, two)]
    assert sums[0] == pytest.approx(sums[1], rel=1e-7)
    assert not any(parameter.grad is not None for parameter in narrow.parameters())
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


@pytest.mark.parametrize("backend", [None, "eager"])
def test_no_weight_at_all_leaves_a_gradient_of_zero(backend: str | None) -> None:
    """Every place was weightless: nothing is divided by 0, and nobody has to ask the device."""
    drafter = make_drafter(CONFIG).bfloat16()
    optimiser = Optimiser(drafter, config=ADAMW, backend=backend)
    optimiser.rescale(20.0)
    assert float(optimiser.global_norm()) == 0.0
    backward(drafter, gradients(drafter, seed=0))
    optimiser.weight.add_(float("nan"))
    optimiser.rescale(20.0)
    assert not torch.isfinite(optimiser.global_norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_dropped_gradient_is_never_read(dtype: torch.dtype) -> None:
    """Not by a step that has fewer gradients, nor by one of several micro-steps."""
    drafter = make_drafter(CONFIG).to(dtype)
    optimiser = Optimiser(drafter, config=ADAMW)
    given = gradients(drafter, seed=0)
    backward(drafter, {name: g * float("nan") for name, g in given.items()})
    optimiser.weight.add_(float("nan"))
    optimiser.clear()
    assert not optimiser.gradient_P.any()
    backward(drafter, {name: g * float("nan") for name, g in given.items()})
    optimiser.clear()
    (drafter.norm.weight.float() * given["norm.weight"]).sum().backward()
    for _ in range(2):
        (drafter.fc.weight.float() * given["fc.weight"]).sum().backward()
    want = (given["norm.weight"].to(dtype).double() ** 2).sum() + 4 * (
        given["fc.weight"].to(dtype).double() ** 2
    ).sum()
    torch.testing.assert_close(optimiser.global_norm().double(), want.sqrt(), rtol=1e-6, atol=0.0)
    optimiser.clear()
    assert not optimiser.gradient_P.any()


def test_the_scale_of_one_step_is_not_that_of_the_next() -> None:
    """One pass keeps it until the gradient is applied or dropped."""
    drafter = make_drafter(CONFIG).bfloat16()
    optimiser = Optimiser(drafter, config=ADAMW, backend="eager")
    backward(drafter, gradients(drafter, seed=0))
    plain, norms = optimiser.global_norm(), []
    for weight in (5.0, 2.0):
        optimiser.clear()
        backward(drafter, gradients(drafter, seed=0))
        optimiser.weight.add_(weight)
        optimiser.rescale(20.0)
        norms.append(float(optimiser.global_norm() / plain))
        optimiser.clip(optimiser.global_norm(), limit=1.0)
        assert float(optimiser.global_norm()) == pytest.approx(1.0, rel=1e-5)
    assert norms == [pytest.approx(4.0), pytest.approx(10.0)]
