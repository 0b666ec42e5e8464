"""How a measuring script is asked and answers, and what its workload comes to."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from dflash_runner import config
from dflash_runner.errors import Kind, WorkerError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
import told
import traced
import workload

W = {
    **{"S": 3072, "N": 512, "block": 16, "vocabulary": 151_936, "hidden": 4096, "intermediate": 12_288},
    **{"layers": 5, "captured": 5, "heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"},
}


def test_an_answer_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["x.py", '{"rows": 3}'])
    told.answer(lambda asked: {"twice": 2 * asked["rows"]})
    assert capsys.readouterr().out == '{"twice": 6}\n'


@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        (
            WorkerError(Kind.NOT_FOUND, "use device cuda: want a GPU", hint="a driver"),
            "not_found",
            "a driver",
        ),
        (ValueError("training.anchors: want fewer"), "invalid", ""),
        (RuntimeError("CUDA error: an illegal memory access"), "fatal", ""),
    ],
)
def test_an_error_is_an_answer_too(monkeypatch, capsys, error, kind, hint):
    monkeypatch.setattr(sys, "argv", ["x.py", "{}"])

    def fail(_asked):
        raise error

    with pytest.raises(SystemExit) as ended:
        told.answer(fail)
    answer = json.loads(capsys.readouterr().out)["error"]
    assert (ended.value.code, answer["kind"], answer["hint"]) == (1, kind, hint)
    assert str(error) in answer["message"]


def test_the_reference_workload():
    shape = workload.Shape.told(W)
    assert shape.layer_ids == (1, 9, 17, 25, 33)
    assert workload.teraflop(shape) == pytest.approx(71.46, abs=0.01)  # what all its figures are shares of
    for device, attention in (("cuda:0", "flex"), ("cpu", "sdpa")):
        made = workload.message(shape, Path("/nowhere"), device=device, threads=2)
        assert config.from_message(made).attention == attention
    assert workload.Shape.told(W | {"captured": 1}).layer_ids == (1,)


def test_gaps_are_told_by_their_neighbours():
    """Whatever ran last before a gap, on any stream; equal neighbours are added up."""
    times = [("a", 0, 9), ("b", 2, 4), ("c", 11, 12), ("a", 12, 13), ("c", 20, 22), ("b", 22, 30)]
    ran = [traced.Ran(name=n, start_us=1e3 * s, end_us=1e3 * e, self_us=1.0) for n, s, e in times]
    (found,) = traced.gaps(ran)
    assert found == {"before": "a", "after": "c", "ms": 9.0, "calls": 2, "largest_ms": 7.0}
    assert traced.gaps([]) == []


def test_operators_are_added_up_by_name():
    one = torch.ones(8, 8)

    def work():
        for _ in range(3):
            one @ one

    found = {
        kernel["name"]: kernel for kernel in traced.by_name(traced.kernels(work, device=torch.device("cpu")))
    }
    assert found["aten::mm"]["calls"] == 3 and found["aten::mm"]["ms"] > 0
    longest = [kernel["ms"] for kernel in found.values()]
    assert longest == sorted(longest, reverse=True)
