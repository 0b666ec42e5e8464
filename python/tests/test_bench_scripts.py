"""How a measuring script is asked and answers, and what its workload comes to."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import pytest
import torch
from dflash_runner import config
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.frozen import FrozenTarget
from dflash_runner.pretrained import read_target
from dflash_runner.tokenizer import load_tokenizer
from flex_worker import watching
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
import curves
import deaths
import drafters
import row_ways
import step
import target
import told
import traced
import workload


@pytest.fixture
def unsealed(monkeypatch):
    """What warms up here seals the compiler of the process, and arms it: not for the tests that follow."""
    with watching(monkeypatch):
        yield


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


def test_the_reference_targets_row():
    """An 8B target's, of five documents: 34 of 36 layers, and all of them with the head."""
    shape = workload.Shape.told(W)
    row = workload.packed_row(shape)
    assert row.documents_S.bincount().tolist() == [960, 768, 576, 480, 288]
    assert workload.target_teraflop(shape) == pytest.approx(40.905, abs=0.001)
    assert workload.target_teraflop(shape, logits=True) == pytest.approx(47.135, abs=0.001)
    assert sum(workload.document_lengths(64)) == 64 and min(workload.document_lengths(8)) >= 1


@pytest.mark.parametrize(
    ("way", "parts"),
    [
        ("varlen", ("varlen", "")),
        ("norms", ("sdpa", "norms")),
        ("flex+blocks", ("flex", "blocks")),
        ("varlen+flex", None),
        ("norms+blocks", None),
        ("", None),
    ],
)
def test_ways_of_a_row(way, parts):
    if parts is None:
        with pytest.raises(ValueError, match="--try: want one of sdpa"):
            row_ways.parts_of(way)
    else:
        assert row_ways.parts_of(way) == parts


def test_the_command_and_the_script_know_the_same_ways():
    source = (Path(__file__).resolve().parents[2] / "cmd/internal/bench/row.go").read_text()
    for name, ways in (("attentions", row_ways.ATTENTIONS), ("fusions", row_ways.FUSIONS)):
        (line,) = (line for line in source.splitlines() if line.lstrip().startswith(name))
        assert json.loads("[" + line.split("{")[1].rstrip("}") + "]") == list(ways)


def test_ways_of_a_row_give_its_hidden_states():
    """Each that a CPU has, uncompiled; the model is as it was afterwards, and a way that fails says why."""
    tiny = {"S": 48, "N": 4, "vocabulary": 64, "hidden": 32, "intermediate": 48, "heads": 2, "kv_heads": 1}
    shape = workload.Shape.told(W | tiny | {"head_dim": 16, "captured": 2, "dtype": "float32"})
    target = FrozenTarget.of_model(workload.random_target(shape, device="cpu"), layer_ids=(0, 2))
    row, timed = workload.packed_row(shape), lambda *_, **given: {"ran": given["rounds"]}
    want_SC = target.hidden_states(row)
    told_of = {
        way: row_ways.tried(way, target, row=row, want_SC=want_SC, timed=timed, rounds=3)
        for way in ("sdpa", "math", "causal", "varlen", "other")
    }
    for way in ("sdpa", "math"):
        assert told_of[way]["difference"] <= 2e-6 and told_of[way]["plain"] == {"ran": 3}
    assert told_of["causal"]["difference"] > 0.1  # documents see each other
    assert (
        "_flash_attention_forward" in told_of["varlen"]["failed"]
        and "want one of" in told_of["other"]["failed"]
    )
    assert torch.equal(target.hidden_states(row), want_SC)


TINY = W | {"S": 24, "N": 4, "block": 4, "vocabulary": 64, "hidden": 32, "intermediate": 48, "layers": 1}
TINY |= {"captured": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "dtype": "float32"}
MIXED = {  # as cmd/internal/bench/documents.go tells them
    "documents": [[10, 6], [8, 5], [20, 12]],
    "rows": [[[2, 0, 0, 20, 4]], [[1, 0, 0, 8, 1], [0, 0, 8, 10, 3]]],
}


def test_rows_of_many_documents():
    """Each document's end is supervised, and what they leave of the row is padding."""
    shape = workload.Shape.told(TINY)
    one = workload.rows_of(shape, device="cpu")()
    rows = workload.mixed_rows(MIXED, shape=shape, like=one)
    kept = [row.tensors["loss_mask"].nonzero()[:, 0].tolist() for row in rows]
    assert kept == [[*range(8, 20)], [*range(3, 8), *range(12, 18)]]
    documents = [row.tensors["documents"].tolist() for row in rows]
    assert documents == [[0] * 20 + [-1] * 4, [0] * 8 + [1] * 10 + [-1] * 6]
    assert [[piece.sample for piece in row.pieces] for row in rows] == [[2], [1, 0]]
    assert all(row.tensors["hidden"] is one["hidden"] for row in rows)
    assert rows[0].tensors["tokens"].max() < shape.vocabulary and not rows[0].tensors["tokens"][20:].any()
    wrong = {**MIXED, "rows": [[[0, 0, 0, 9, 1]]]}
    with pytest.raises(WorkerError, match="want 10 tokens, got 9"):
        workload.mixed_rows(wrong, shape=shape, like=one)


@pytest.mark.usefixtures("unsealed")
def test_steps_of_rows_in_turn(tmp_path):
    """Every row is prepared as often as the others, with other anchors each time that it comes."""
    shape = workload.Shape.told(TINY)
    steps = step.Steps(shape, tmp_path, device="cpu", threads=1)
    prepared, prepare = [], steps.trainer.prepare

    def noted(tensors, *, epoch, pieces):
        row = prepare(tensors, epoch=epoch, pieces=pieces)
        prepared.append((len(pieces), epoch, row.anchors, tuple(row.blocks.rule.anchors_BN[0].tolist())))
        return row

    steps.trainer.prepare = noted
    told_ms = step.mixed_ms(steps, MIXED, shape=shape, rounds=3)
    steps._next.result()  # noqa: SLF001 the copy thread is done
    assert told_ms["step_ms"] > 0
    # two that are not timed, four that are, for three asked of two rows, and one beside the last
    assert [one[:2] for one in prepared] == [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2), (1, 3)]
    assert all(anchors == shape.anchors for _, _, anchors, _ in prepared)
    assert len({chosen for *_, chosen in prepared}) > 4


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


def test_what_the_death_of_all_drafters_cost():
    def event(at, name, **fields):
        return {"at": f"2026-11-30T10:00:{at:09.6f}Z", "event": name, **fields}

    pair = ["drafter/0", "drafter/1"]
    kill = deaths.Kill.of("drafters@6")
    assert kill.struck(["target/0", *pair]) == pair
    assert deaths.Kill.of("drafter/1@6").struck(["target/0", *pair]) == ["drafter/1"]
    told_of = [event(1, "worker ready", worker=name) for name in pair]  # their first lives: not counted
    told_of += [event(2 + n, "step decided", step=n) for n in range(1, 7)]
    struck = {"workers": pair, "at": deaths.seconds(event(8.5, ""))}
    told_of += [event(9, "worker died", worker=name) for name in pair]
    told_of += [event(9.5, "restored", step=4), event(12, "worker ready", worker="drafter/1")]
    assert deaths.after_death(told_of, struck)["settled"] is None
    told_of += [event(15, "worker ready", worker="drafter/0"), event(15.75, "step decided", step=5)]
    found = deaths.after_death(told_of, struck)
    assert (found["settled"] - found["ready"], found["steps_again"]) == (0.75, 2)
    assert found["died"] - struck["at"] == 0.5


def test_a_workload_in_fp8_is_told_so(tmp_path):
    shape = workload.Shape.told({**W, "precision": "fp8"})
    told_ = workload.message(shape, tmp_path, device="cuda:0", threads=1)
    assert config.from_message(told_).drafter.precision == "fp8"
    plain = workload.message(workload.Shape.told(W), tmp_path, device="cuda:0", threads=1)
    assert not plain.drafter.precision  # unsaid, so that caches and manifests are as ever


def a_run(directory, *, loss, seed, precision):
    """What a run of some steps left behind."""
    directory.mkdir()
    decided = [(step, loss / step) for step in range(1, 6)]
    events = [{"event": "step decided", "step": step, "figures": {"loss": found}} for step, found in decided]
    events.insert(1, {"event": "step decided", "step": 2, "figures": {"loss": 99.0}})  # undone by a restore
    events.append({"event": "worker ready", "worker": "drafter/0"})
    (directory / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    certificate = {"precision": precision, "fp8_products": 7 if precision == "fp8" else 0}
    summary = {
        **{"heldout_loss": loss, "acceptance_before": 1.0, "acceptance_after": 4 - loss, "lossless": True},
        **{"acceptance_nonlooping": 3.0, "exit": 0, "steps": 5},
        "workers": [
            {"role": "target", "device": "GPU-1", "certificate": {"precision": "compute_dtype"}},
            {"role": "drafter", "device": "GPU-2", "certificate": certificate},
        ],
        "stages": [{"name": "launch", "seconds": 90}, {"name": "train", "seconds": 2.5}],
    }
    (directory / "summary.json").write_text(json.dumps(summary))
    return {"seed": seed, "value": precision, **curves.told(directory)}


def test_curves_of_two_precisions_are_compared_seed_by_seed(tmp_path):
    made = [
        ("compute_dtype", 1, 2.0),
        ("fp8", 1, 2.5),
        ("compute_dtype", 2, 1.0),
        ("fp8", 2, 0.9),
        ("fp8", 3, 9.0),
    ]
    runs = [a_run(tmp_path / f"{p}{s}", loss=x, seed=s, precision=p) for p, s, x in made]
    assert (runs[1]["certified"], runs[1]["fp8_products"], runs[1]["train_s"]) == ("fp8", 7, 2.5)
    assert runs[0]["losses"] == [[1, 2.0], [2, 1.0], [3, 0.66667], [4, 0.5], [5, 0.4]]
    assert runs[0]["acceptance_per_device_hour"] == pytest.approx((2.0 - 1.0) / (2 * 2.5 / 3600))
    found = curves.compared(runs, values=curves.PRECISIONS)
    assert found["seeds"] == [1, 2]  # the third has no partner
    assert found["heldout_loss"]["by_seed"] == {"fp8": [0.5, -0.1]}
    assert found["heldout_loss"]["more"] == {"fp8": pytest.approx(0.2)}
    assert found["acceptance_after"]["by_seed"] == {"fp8": [-0.5, 0.1]}
    assert found["last_loss"]["mean"]["compute_dtype"] == pytest.approx(0.3)
    assert found["heldout_loss"]["spread_of_seeds"] == pytest.approx(0.70711)
    assert curves.compared(runs[:1], values=curves.PRECISIONS)["heldout_loss"] is None


def test_runs_side_by_side_begin_with_the_first_seed():
    runs = [
        curves.Run(key="training.draws_per_row", value=v, seed=s) for s in (7, 8, 9) for v in ("1", "2", "4")
    ]

    def sizes(at_once):
        return [len(group) for group in curves.groups(runs, at_once=at_once)]

    assert (sizes(1), sizes(2), sizes(4), sizes(9)) == ([1] * 9, [2, 1, 2, 2, 2], [3, 4, 2], [3, 6])
    assert [run for group in curves.groups(runs, at_once=4) for run in group] == runs
    words = runs[4].command("up.sh", ["-f", "x.yaml"], answers=7, shared=True)
    assert words[:6] == ["up.sh", "up", "-f", "x.yaml", "--plain", "--name"]
    assert words[6] == "curves-draws-per-row-2-8" and {"run.seed=8", "training.draws_per_row=2"} < set(words)
    assert {"data.regenerate.seed=7", "workers.busy_devices=allow"} < set(words)
    assert "workers.busy_devices=allow" not in runs[4].command("up.sh", [], answers=7, shared=False)


UP = """#!{python}
import json, os, signal, sys
signal.alarm(60)  # instead of waiting for ever
words = sys.argv[1:]
name = words[words.index("--name") + 1]
told = dict(word.split("=", 1) for word in words if "=" in word)
value, seed = told["training.draws_per_row"], int(told["run.seed"])
if "workers.busy_devices" in told and seed == 1:
    open("meeting", "wb" if value == "1" else "rb").close()  # returns when the other is there
print("ran", name)
if (value, seed) == ("2", 3):
    sys.exit(1)
os.makedirs(f"runs/{{name}}")
with open(f"runs/{{name}}/events.jsonl", "w") as events:
    events.write(json.dumps({{"event": "step decided", "step": 1, "figures": {{"loss": 3.0}}}}))
summary = {{"heldout_loss": 2.0, "acceptance_before": 1.0, "acceptance_after": 2.0 + float(value) / 2}}
summary |= {{"acceptance_nonlooping": 1.0, "lossless": True, "exit": 0, "steps": 1}}
summary |= {{"workers": [{{"role": "drafter", "device": "cpu", "certificate": None}}]}}
summary |= {{"stages": [{{"name": "train", "seconds": 36.0}}]}}
json.dump(summary, open(f"runs/{{name}}/summary.json", "w"))
"""


@pytest.mark.parametrize("at_once", [1, 2])
def test_values_of_a_key_side_by_side(monkeypatch, capsys, tmp_path, at_once):
    """Runs of a stand-in for `up`; that of the last seed's second value fails."""
    monkeypatch.chdir(tmp_path)
    up = tmp_path / "up"
    up.write_text(UP.format(python=sys.executable))
    up.chmod(0o700)
    os.mkfifo("meeting")
    words = [str(up), "--key", "training.draws_per_row", "--values", "1", "2", "--side-by-side", str(at_once)]
    monkeypatch.setattr(sys, "argv", ["curves.py", *words, "--", "-f", "small.yaml"])
    with pytest.raises(SystemExit) as ended:
        curves.main()
    found = json.loads(capsys.readouterr().out)
    assert (ended.value.code, found["arguments"], found["left_out"]) == (1, ["-f", "small.yaml"], [])
    assert [(run["seed"], run["value"]) for run in found["runs"]] == [
        (1, "1"),
        (1, "2"),
        (2, "1"),
        (2, "2"),
        (3, "1"),
    ]
    assert [(run["seed"], run["value"]) for run in found["failed"]] == [(3, "2")]
    assert "want exit code 0, got 1: see curves-draws-per-row-2-3.log" in found["failed"][0]["why"]
    assert (tmp_path / "curves-draws-per-row-2-3.log").read_text() == "ran curves-draws-per-row-2-3\n"
    assert found["compared"]["seeds"] == [1, 2]
    assert found["compared"]["acceptance_after"]["more"] == {"2": 0.5}
    hourly = found["compared"]["acceptance_per_device_hour"]
    if at_once > 1:
        assert hourly is None and not any(run[name] for run in found["runs"] for name in ("run_s", "train_s"))
    else:
        assert hourly["mean"] == {"1": 150.0, "2": 200.0} and found["runs"][0]["train_s"] == 36.0


def test_a_run_that_may_end_too_late_is_left_out(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(curves.Trainings, "train", lambda _, group: 100.0 * len(group))
    monkeypatch.setattr(
        sys, "argv", ["curves.py", "up", "--side-by-side", "4", "--seconds", "250", "--", "x"]
    )
    curves.main()
    assert json.loads(capsys.readouterr().out)["left_out"] == []
    monkeypatch.setattr(sys, "argv", ["curves.py", "up", "--seconds", "50", "--", "x"])
    curves.main()
    left = json.loads(capsys.readouterr().out)["left_out"]
    assert left == [[1, "fp8"], *([seed, value] for seed in (2, 3) for value in curves.PRECISIONS)]


def test_another_key_has_values_of_its_own(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["curves.py", "up", "--key", "training.gamma", "--", "x"])
    with pytest.raises(SystemExit):
        curves.asked()
    assert "--values: want those of --key" in capsys.readouterr().err


def test_a_curve_is_of_stretches():
    told_ = curves.curve([float(n) for n in range(50)], points=20)
    assert (len(told_), told_[0], told_[-1]) == (17, [3, 1.0], [50, 48.5])
    assert curves.curve([1.0, math.nan, 3.0], points=3)[1] == [2, None]
    assert curves.curve([]) == []


def test_curves_of_a_run_without_a_summary(tmp_path):
    with pytest.raises(RuntimeError, match="want the summary of a run that ended, got none"):
        curves.told(tmp_path)


SMALL = {
    **{"S": 24, "N": 3, "block": 4, "vocabulary": 64, "hidden": 16, "intermediate": 32, "layers": 1},
    **{"captured": 2, "heads": 1, "kv_heads": 1, "head_dim": 16, "dtype": "float32"},
}


def test_a_random_target_is_of_the_dtype_and_its_samples_fill_rows(tmp_path):
    """A vocabulary larger than the tokenizer's: no sample holds a special, of which the mask token is one."""
    asked = {
        **{"directory": str(tmp_path), "vocabulary": 300, "hidden": 16, "intermediate": 32, "layers": 2},
        **{"heads": 1, "kv_heads": 1, "head_dim": 16, "tied": False, "dtype": "bfloat16", "device": "cpu"},
        **{"samples": 3, "min_tokens": 48, "max_tokens": 48},
    }
    target.measure(asked)
    model = read_target(tmp_path, dtype=torch.bfloat16)
    stored = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    head_VD, embedding_VD = model.lm_head.weight, model.model.embed_tokens.weight
    assert head_VD.shape == (300, 16) and not torch.equal(head_VD, embedding_VD)
    assert 0.015 < embedding_VD.float().std() < 0.025  # the model's initializer_range
    samples = [json.loads(line)["tokens"] for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert [len(tokens) for tokens in samples] == [48, 48, 48]
    assert all(2 < token < 300 for tokens in samples for token in tokens)
    assert load_tokenizer(tmp_path).mask_token_id == 2


class DoublingGroup:
    """A group of two whose other rank brings the same values."""

    def allreduce(self, tensors, options):  # noqa: ARG002
        tensors[0].mul_(2)
        return self

    def wait(self):
        pass

    def abort(self):
        pass


class Clock:
    """Told the time by who computes and who waits."""

    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.mark.usefixtures("unsealed")
def test_a_step_of_a_rank_is_its_rows_one_sum_and_an_update(tmp_path, monkeypatch):
    """The last row alone is given the group; waiting for the sum counts, computing before it does not."""
    monkeypatch.setenv("NCCL_CUMEM_ENABLE", "0")
    monkeypatch.setattr(step, "prepare_torch", lambda _: None)  # once a process
    clock = Clock()
    monkeypatch.setattr(drafters, "time", clock)

    class Group(drafters.KeptNccl):
        def await_own(self):
            clock.now += 3.0  # the backward's end

        def _finish(self, *, doing):
            clock.now += 0.5
            super()._finish(doing=doing)

    place = step.Place(world=2, rank=0, rows_per_step=2, groups=str(tmp_path / "groups"))
    steps = step.Steps(workload.Shape.told(SMALL), tmp_path, device="cpu", threads=1, place=place)
    (tmp_path / "groups").mkdir()
    store = torch.distributed.FileStore(str(tmp_path / "groups" / "1"), 2)
    store.set("arrived/1", b"1")
    made = Group(
        **{"directory": place.groups, "number": 1, "world": 2, "rank": 0, "device": steps.device},
        make=lambda *_: DoublingGroup(),
    )
    made.open()
    given, micro_step = [], steps.trainer.micro_step

    def seen(prepared, *, row, communicator):
        given.append((row, communicator))
        return micro_step(prepared, row=row, communicator=communicator)

    monkeypatch.setattr(steps.trainer, "micro_step", seen)
    before = steps.trainer.parameters_digest()
    seconds, kept_s = drafters.timed(steps, made, rows=2, count=3)
    assert given == [(1, None), (2, made)] * 3
    assert (seconds, kept_s) == (3 * 3.5, 3 * 0.5)
    assert steps.trainer.parameters_digest() != before
    made.close()


@pytest.mark.usefixtures("unsealed")
def test_a_drafter_alone_has_a_group_of_its_own(monkeypatch):
    monkeypatch.setattr(step, "prepare_torch", lambda _: None)
    asked = {"shape": SMALL, "rows": 4, "rows_per_step": 2, "world": 1, "rank": 0, "groups": ""}
    found = drafters.measure(asked | {"device": "cpu", "threads": 1})
    assert (found["steps"], found["replayed"], found["attention"]) == (2, False, "sdpa")
    assert found["seconds"] > found["kept_s"] >= 0 and found["sum_bytes"] > 4 * found["parameters"]
