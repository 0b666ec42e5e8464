"""Queues of work: the main thread's, through which everything that touches torch goes, and helpers'."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from dflash_runner.errors import is_survivable

T = TypeVar("T")
Task = Callable[[], None]


class Loop:
    """A queue that any thread fills and the main thread empties, in order."""

    def __init__(self) -> None:
        """Make an empty queue."""
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._done = False

    def put(self, task: Task) -> None:
        """Queue `task`; callable from any thread and from a signal handler."""
        self._tasks.put(task)

    def call(self, work: Callable[[], T]) -> Future[T]:
        """What `work` will return or raise, once the main thread comes to it.

        An error after which the worker cannot go on is raised on the main thread as well.

        Args:
            work: run on the main thread.

        Returns:
            The future; cancelled if the worker ends first.
        """
        future: Future[T] = Future()

        def task() -> None:
            try:
                result = work()
            except Exception as err:
                future.set_exception(err)
                if not is_survivable(err):
                    raise
            else:
                future.set_result(result)

        self.put(task)
        return future

    def finish(self) -> None:
        """End `run` after the task that calls this; only on the main thread."""
        self._done = True

    def run(self) -> None:
        """Empty the queue until `finish`; only on the main thread.

        Waiting lets signal handlers run. An exception of a task ends the worker.
        """
        if threading.current_thread() is not threading.main_thread():
            raise AssertionError("torch work belongs to the main thread")
        while not self._done:
            self._tasks.get()()


class Helper:
    """One thread with a queue, for work that must not wait for the main thread."""

    def __init__(self, name: str) -> None:
        """Start the thread; it lives as long as the process."""
        self._tasks: queue.Queue[Task] = queue.Queue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, task: Task) -> None:
        """Queue `task`; an exception in it ends the process, reported."""
        self._tasks.put(task)

    def settle(self) -> None:
        """Wait until everything queued so far is done."""
        self._tasks.join()

    def _run(self) -> None:
        """Work off the queue for ever."""
        while True:
            task = self._tasks.get()
            task()
            self._tasks.task_done()
