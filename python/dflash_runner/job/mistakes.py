"""Mistakes in data files, gathered so that one try tells of many."""

from __future__ import annotations

from dflash_runner.tensorfile import FileError

__all__ = ["MOST", "Mistakes"]

MOST = 20


class Mistakes:
    """What is wrong with the files, in their order; the `MOST`th ends the reading."""

    def __init__(self) -> None:
        """None yet."""
        self._all: list[FileError] = []

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._all)

    def add(self, error: FileError) -> None:
        """Notes one.

        Raises:
            FileError: it was the `MOST`th; all of them.
        """
        self._all.append(error)
        if len(self._all) == MOST:
            self.refuse()

    def refuse(self) -> None:
        """Ends what cannot go on.

        Raises:
            FileError: there are mistakes: all of them, a line each, and what helps.

        Source: none; a file of a million lines is mended in fewer tries.
        """
        if not self._all:
            return
        if len(self._all) == 1:
            raise self._all[0]
        many = f"the first {MOST}" if len(self._all) == MOST else str(len(self._all))
        raise FileError(
            "\n  ".join([f"prepare: {many} mistakes in the files:", *map(str, self._all)]),
            hint="; ".join(dict.fromkeys(error.hint for error in self._all if error.hint)),
        ) from self._all[0]
