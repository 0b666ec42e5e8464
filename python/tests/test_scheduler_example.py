"""The example plugin in Python: its contract, and its mix of sources."""

from __future__ import annotations

import importlib.util
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from dflash_runner.scheduler import ArrangeRequest, Candidate, Deadline, Pool, Source, testing
from hypothesis import given, settings
from hypothesis import strategies as st

SCRIPT = Path(__file__).resolve().parents[2] / "plugins/examples/steer-by-loss/steer_by_loss.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("steer_by_loss", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


steer = load()


def test_it_keeps_the_contract():
    testing.prove(steer.SteerByLoss, {"strength": 1.0}, deadline_s=120)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0.01, 100)), min_size=1, max_size=6), st.data())
def test_a_mix_is_even_until_a_source_has_no_more(sources, data):
    """Never more of a source than there is, and no place left out."""
    counts, shares = [n for n, _ in sources], [share for _, share in sources]
    places = data.draw(st.integers(0, sum(counts)))
    order = list(steer.mixed(counts, shares, places))
    assert len(order) == places
    assert all(order.count(s) <= n for s, n in enumerate(counts))
    for at in range(places):  # while nothing has run out, within one of the exact share
        given_so_far = [order[: at + 1].count(s) for s in range(len(counts))]
        if any(g == n for g, n in zip(given_so_far, counts, strict=True)):
            break
        for got, share in zip(given_so_far, shares, strict=True):
            assert abs(got - (at + 1) * share / sum(shares)) < len(counts)


def test_weights():
    settings = steer.Settings(strength=2.0, least=0.25)
    assert steer.weights([3, 5], [None, None], settings) == [3, 5]
    assert steer.weights([1, 1], [3.0, 1.0], settings) == [2.25, 0.25]
    assert steer.weights([10, 10], [1.0, 0.0], settings) == [40, 2.5]  # the least
    assert steer.weights([10, 10, 4], [1.0, 1.0, None], settings) == [10, 10, 4]  # not trained on: the mean
    assert steer.weights([10, 0], [1.0, 99.0], settings) == [10, 0]  # no samples: not in the mean
    assert steer.weights([2, 2], [0.0, 0.0], settings) == [2, 2]
    assert steer.weights([2, 2], [3.0, 1.0], steer.Settings(strength=0, least=0)) == [2, 2]


@pytest.mark.parametrize("strength", [0.0, 1.0, 2.0])
def test_the_order_follows_the_losses(strength):
    """The share of the worse source in a horizon rises with the strength; within a source nothing moves."""
    pool = [Candidate(sample=i, tokens=8, supervised=4, anchors=3, source=i % 2) for i in range(200)]
    plugin = steer.SteerByLoss()
    plugin.settings = steer.Settings(strength=strength, least=0.1)
    sources = (Source(name="chat", loss=1.0), Source(name="code", loss=3.0))
    request = ArrangeRequest(
        epoch=1,
        count=60,
        left=200,
        total=200,
        pool=Pool.of(pool),
        sources=sources,
        deadline=Deadline.after(60),
    )
    order = plugin.arrange(request)
    want = 3**strength / (1 + 3**strength)
    assert sum(sample % 2 for sample in order) == pytest.approx(60 * want, abs=1)
    for source in (0, 1):
        assert all(a < b for a, b in pairwise(s for s in order if s % 2 == source))
