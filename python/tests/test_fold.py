"""A fold tells any change of what a tensor holds."""

from __future__ import annotations

import pytest
import torch
from dflash_runner import fold as module
from dflash_runner.fold import fold


def test_it_follows_from_the_content_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from the layout in memory, nor from how it is cut into chunks."""
    whole = torch.randn(33, 7, generator=torch.Generator().manual_seed(0))
    want = fold(whole)
    assert torch.equal(fold(whole.T.contiguous().T), want)
    monkeypatch.setattr(module, "_CHUNK", 10)
    assert torch.equal(fold(whole), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.float16, torch.int8])
def test_every_change_changes_every_word(dtype: torch.dtype) -> None:
    """One element, two that change places, a zero with the other sign."""
    base = torch.arange(-100, 100).to(dtype)
    changes = []
    for place in range(0, 200, 13):
        changed = base.clone()
        changed[place] += 1
        changes.append(changed)
    swapped = base.clone()
    swapped[[3, 150]] = swapped[[150, 3]]
    changes.append(swapped)
    for changed in changes:
        assert (fold(changed) != fold(base)).all()
    assert (fold(torch.tensor([0.0])) != fold(torch.tensor([-0.0]))).all()
