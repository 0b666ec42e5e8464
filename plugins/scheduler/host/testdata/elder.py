"""The plugin of the frozen transcript (api1.txt), as it is written in Python today."""

# ruff: noqa: T201

from dflash_runner import scheduler
from dflash_runner.scheduler import Decision, Field, Type, Verdict


class Elder(scheduler.Scheduler):
    name, version = "elder", "0.9"

    def schema(self):
        return (
            Field(key="depth", type=Type.INT, default=4, min=1, max=9, doc="how deep"),
            Field(key="mode", type=Type.TEXT, default="a", one_of=("a", "b"), doc="which way"),
        )

    def configure(self, config):
        assert config.values["depth"] == 5

    def arrange(self, request):
        return [request.pool[i].sample for i in (1, 0, 3)]

    def assign(self, request):
        return request.free[1]

    def place(self, request):
        return {n.worker: d.id for n, d in zip(request.needs, request.devices, strict=True)}

    def on_failure(self, request):
        return Verdict(decision=Decision.REPLACE, device=request.devices[1].id, reason="it was hot")

    def observe(self, event):
        print("observed", event.number, event.name)


if __name__ == "__main__":
    scheduler.serve(Elder())
