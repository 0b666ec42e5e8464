"""What is said with a scheduling plugin, and its SDK: it stands alone.

A plugin is a script of a few lines, a subclass of `Scheduler` that is served:

    from dflash_runner import scheduler

    class Mine(scheduler.Scheduler):
        name, version = "mine", "1.0.0"

        def arrange(self, request):
            return scheduler.first(request)

    if __name__ == "__main__":
        scheduler.serve(Mine())

Each ability is a method, and optional: what a class does not override, the built-in does, and the
plugin is not asked. The warm-up gate and which drafter trains a row are not a plugin's to decide.

How a plugin lives: the host starts it from a private copy whose files it checked, with an environment
made from nothing, under mutual TLS over a socket. `info` is asked, then `schema`; the host checks the
configuration against the schema, fills in defaults, and calls `configure`, once. Then questions come,
several at a time and from several threads, each with a deadline: an answer after it goes nowhere. The
host may end and start a plugin at any time, so a request carries all that its answer needs, and a plugin
should keep nothing that it cannot do without.

Every answer is checked. A bad one, an error and a late one are the same to a run: the built-in answers
instead, a strike is counted and shown. So a plugin can make a run slower or better, and never wrong.

Printing is harmless: it goes to the plugin's log, as standard error and tracebacks do.
`dflash_runner.scheduler.testing` proves in process that a class keeps this contract, and
`dflash-runner plugins test SCRIPT.py` as a run would.
"""

from dflash_runner.scheduler.errors import Error, Kind
from dflash_runner.scheduler.plugin import API_VERSION, Capability, Info, Scheduler, capabilities
from dflash_runner.scheduler.pool import Candidate, Pool
from dflash_runner.scheduler.requests import (
    ArrangeRequest,
    AssignRequest,
    Deadline,
    Decision,
    Device,
    Event,
    FailureRequest,
    Link,
    Need,
    PlaceRequest,
    Source,
    Verdict,
    Worker,
    first,
)
from dflash_runner.scheduler.schema import Config, Field, Type
from dflash_runner.scheduler.serving import serve

__all__ = [
    "API_VERSION",
    "ArrangeRequest",
    "AssignRequest",
    "Candidate",
    "Capability",
    "Config",
    "Deadline",
    "Decision",
    "Device",
    "Error",
    "Event",
    "FailureRequest",
    "Field",
    "Info",
    "Kind",
    "Link",
    "Need",
    "PlaceRequest",
    "Pool",
    "Scheduler",
    "Source",
    "Type",
    "Verdict",
    "Worker",
    "capabilities",
    "first",
    "serve",
]
