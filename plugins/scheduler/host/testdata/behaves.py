"""A plugin that does everything as it should, but for what its argument says."""

# ruff: noqa: T201, ARG002, I001

import os
import sys
import threading
import time

from beside import LAST  # a file of the plugin's own, beside it

from dflash_runner import scheduler
from dflash_runner.scheduler import Decision, Error, Field, Kind, Type, Verdict

WHICH = sys.argv[1]


class Behaves(scheduler.Scheduler):
    name, version = "good", "1.2.3"

    def info(self):
        if WHICH == "hang-info":
            threading.Event().wait()
        if WHICH == "misnamed":
            return scheduler.Info(name="Not A Name", version="1")
        if WHICH == "wordless":
            return "good"
        if WHICH == "reveals":
            links = []
            for fd in os.listdir("/proc/self/fd"):
                try:
                    links.append(os.readlink(f"/proc/self/fd/{fd}"))
                except FileNotFoundError:
                    pass  # that of the listing
            print("revealed", *os.environ, *links)
            print("imports from", *sys.path)
        return super().info()

    def schema(self):
        bad = "x" if WHICH == "bad-default" else 4
        return (
            Field(key="depth", type=Type.INT, default=bad, min=1, max=9, doc="how deep"),
            Field(key="mode", type=Type.TEXT, default="a", one_of=("a", "b"), doc="which way"),
        )

    def configure(self, config):
        if WHICH == "refuses":
            depth, mode = config.values["depth"], config.values["mode"]
            raise Error(Kind.INVALID, f"depth {depth} does not go with mode {mode}", hint="use mode b")
        if WHICH == "exits-in-configure":
            sys.exit("no licence found")

    def arrange(self, request):
        assert 0 < request.deadline.remaining_s < 3600
        out = scheduler.first(request)[::-1]
        match WHICH:
            case "million":
                return [0] * 1_000_000
            case "duplicates":
                out[1] = out[0]
            case "drops":
                return out[1:]
            case "invents":
                out[0] = 4_000_000
            case "texts":
                out[1] = "12"
            case "none":
                return None
            case "negative":
                out[2] = -1
            case "late":
                while not request.deadline.over:
                    time.sleep(0.001)
                print("the deadline was seen")
                threading.Event().wait()  # an answer now might be in time yet
            case "dies":
                os._exit(4)
            case "errs":
                raise Error(Kind.EXHAUSTED, "no samples for the moment", hint="wait")
            case "raises":
                raise KeyError("loss")
        return out

    def assign(self, request):
        return request.free[LAST]

    def place(self, request):
        return {n.worker: request.devices[i % len(request.devices)].id for i, n in enumerate(request.needs)}

    def on_failure(self, request):
        return Verdict(decision=Decision.RESTART, reason="as ever")

    def observe(self, event):
        print("observed", event.number, event.name)


if __name__ == "__main__":
    match WHICH:
        case "no-plugin":
            print("usage: none [flags]")
        case "fails":
            raise RuntimeError("no licence found")
        case "shows-another":
            from dflash_runner.scheduler import pair

            pair.Pair.announced = os.environ["PLUGIN_CLIENT_CERT"].replace("\n", "")[27:-25].rstrip("=")
            scheduler.serve(Behaves())
        case "prints-first":
            print("Welcome to FancyScheduler 3.0", flush=True)
            scheduler.serve(Behaves())
        case _:
            scheduler.serve(Behaves())
