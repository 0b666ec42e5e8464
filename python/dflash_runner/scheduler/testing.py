"""The contract's kit for the tests of a plugin: every question, in this process.

    from dflash_runner.scheduler import testing

    def test_contract():
        testing.prove(Mine)

Questions and answers pass through the messages that travel, and are judged as the host judges them.
`dflash-runner plugins test SCRIPT.py` does the same with a process of its own, as a run would, and
looks at its handshake, its deadlines and its end as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_runner.scheduler.kit import Found, Kit, Skip
from dflash_runner.scheduler.plugin import Capability, Scheduler

OK, FAILED, SKIPPED = "ok", "failed", "skipped"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One thing that was looked at."""

    name: str
    status: str  # ok, failed or skipped
    detail: str


def prove(
    make: Callable[[], Scheduler],
    config: Mapping[str, Any] | None = None,
    *,
    seed: int = 1,
    deadline_s: float = 1.0,
) -> None:
    """Pass if `check` finds nothing; else say all that it found.

    Args:
        make: gives a plugin that is not configured, such as its class.
        config: keys of its configuration; the rest are defaults.
        seed: of the run.
        deadline_s: of one question.

    Raises:
        AssertionError: the plugin does not keep the contract.
    """
    failed = [r for r in check(make, config, seed=seed, deadline_s=deadline_s) if r.status == FAILED]
    if failed:
        raise AssertionError("\n".join(f"{r.name}: {r.detail}" for r in failed))


def check(
    make: Callable[[], Scheduler],
    config: Mapping[str, Any] | None = None,
    *,
    seed: int = 1,
    deadline_s: float = 1.0,
) -> list[Result]:
    """What was found, in order; a plugin that cannot be configured is asked nothing more.

    Args:
        make: gives a plugin that is not configured, such as its class.
        config: keys of its configuration; the rest are defaults.
        seed: of the run.
        deadline_s: of one question.
    """
    kit = Kit(make(), deadline_s=deadline_s)
    results = []
    for name, question in (
        ("describe", kit.describe),
        ("schema", kit.schema),
        ("configure", lambda: kit.configure(config or {}, seed)),
    ):
        results.append(_look(name, question))
        if results[-1].status == FAILED:
            return results
    for capability, name, question in (
        (Capability.ARRANGE, "arrange whole epochs", kit.epochs),
        (Capability.ARRANGE, "arrange a large pool", kit.large),
        (Capability.ARRANGE, "arrange repeated draws", kit.draws),
        (Capability.ASSIGN, "assign", kit.assign),
        (Capability.PLACE, "place", kit.place),
        (Capability.ON_FAILURE, "on failure", kit.on_failure),
        (Capability.OBSERVE, "observe", kit.observe),
    ):
        if capability in kit.can:
            results.append(_look(name, question))
        else:
            results.append(Result(name=name, status=SKIPPED, detail="the built-in does that"))
    results.append(_look("answers several at a time", kit.together))
    if {Capability.ASSIGN, Capability.ARRANGE} & set(kit.can):
        results.append(_look("leaves nothing behind", kit.leaves))
    else:
        results.append(
            Result(name="leaves nothing behind", status=SKIPPED, detail="it is asked nothing often")
        )
    return results


def _look(name: str, question: Callable[[], str]) -> Result:
    """What a question gave, or what is wrong with it."""
    try:
        return Result(name=name, status=OK, detail=question())
    except Skip as why:
        return Result(name=name, status=SKIPPED, detail=str(why))
    except Found as found:
        return Result(name=name, status=FAILED, detail=str(found))
    except Exception as error:  # noqa: BLE001 whatever a plugin raises is what was found
        return Result(name=name, status=FAILED, detail=f"{type(error).__name__}: {error}")
