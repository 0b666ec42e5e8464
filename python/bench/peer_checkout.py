"""Names that another trainer publishes, found in a checkout of it, imported and called.

Nothing of a trainer lies in this tree: a name is looked up in the files that its versions kept it in, so that
a version which has it elsewhere, or takes other parameters, is told by the name, the file and the parameter.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_runner.errors import Kind, WorkerError


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Where a name is defined."""

    name: str
    module: str
    file: Path


class Checkout:
    """A trainer's files, from which its modules are imported."""

    def __init__(self, root: Path, *, trainer: str, known: str) -> None:
        """Put the files before every installed package.

        Args:
            root: of the checkout.
            trainer: its name, for messages.
            known: of which commits this program knows the API, for hints.

        Raises:
            WorkerError: not_found, where there is no such directory.
        """
        self.root = root.resolve()
        self._trainer, self._known = trainer, known
        if not self.root.is_dir():
            raise WorkerError(Kind.NOT_FOUND, f"open checkout of {trainer}: want a directory, got {root}")
        sys.path.insert(0, str(self.root))

    def find(self, name: str, *modules: str) -> Found:
        """The first of some modules that defines a name; nothing is imported yet.

        Raises:
            WorkerError: not_found, with the files that were looked at.
        """
        files = [file for module in modules for file in self._files(module)]
        for module in modules:
            for file in self._files(module):
                if file.is_file() and name in self._defined(file):
                    return Found(name=name, module=module, file=file)
        there = [self._seen(file) for file in files if file.is_file()]
        seen = f"{' and '.join(there)} without it" if there else "no such file"
        looked = " or ".join(f"{module.replace('.', '/')}.py" for module in modules)
        raise WorkerError(
            Kind.NOT_FOUND,
            f"find {name} of {self._trainer}: want it in {looked}, got {seen}",
            hint=f"{self._known}; is {self.root} the root of a checkout of it?",
        )

    def load(self, found: Found) -> Any:
        """Import what was found.

        Raises:
            WorkerError: not_found, where a package is missing or has not what is imported from it, or the
                name is not there in the end; internal, where the import ends otherwise.
        """
        try:
            module = importlib.import_module(found.module)
        except ImportError as error:
            raise self._missing(found, error) from error
        except Exception as error:
            raise self.failed(f"import {found.module}", error) from error
        if not Path(str(module.__file__)).resolve().is_relative_to(self.root):
            raise WorkerError(
                Kind.INVALID,
                f"import {found.module}: want it from {self.root}, got {module.__file__}",
                hint="an installed copy hides the checkout",
            )
        if not hasattr(module, found.name):  # defined under a condition that does not hold here
            raise WorkerError(
                Kind.NOT_FOUND,
                f"find {found.name} of {self._trainer}: want it in {self._seen(found.file)} once that is "
                "run, got a module without it",
                hint=self._known,
            )
        return getattr(module, found.name)

    def call(self, what: Callable[..., Any], name: str, /, **given: Any) -> Any:
        """Call something of the trainer by parameters that it must take.

        Args:
            what: a class, a function, or a module of torch (its forward).
            name: of it, for messages.
            given: its parameters.

        Raises:
            WorkerError: not_found, where it takes others; as `failed` says, where it fails.
        """
        self.check(what, name, *given)
        try:
            return what(**given)
        except Exception as error:
            raise self.failed(f"call {name}", error) from error

    def attribute(self, what: object, name: str, /, *, of: str) -> Any:
        """What a class of the trainer, or one made of it, has by a name.

        Args:
            what: the class, or what was made of it.
            name: of the attribute.
            of: the class's name, for messages.

        Raises:
            WorkerError: not_found, where it has none, with the class's file.
        """
        try:
            return getattr(what, name)
        except AttributeError as error:
            raise WorkerError(
                Kind.NOT_FOUND,
                f"find {of}.{name} of {self._trainer}{self._where(what)}: want an attribute of that name, "
                "got a class without it",
                hint=self._known,
            ) from error

    def check(self, what: Callable[..., Any], name: str, /, *given: str) -> None:
        """Refuse what does not take exactly these parameters, but for those with a default.

        Raises:
            WorkerError: not_found.
        """
        signature = inspect.signature(what if _is_plain(what) else getattr(what, "forward", what))
        try:
            signature.bind(**dict.fromkeys(given))
        except TypeError as error:
            took = ", ".join(signature.parameters)
            raise WorkerError(
                Kind.NOT_FOUND,
                f"call {name} of {self._trainer}{self._where(what)}: want parameters {', '.join(given)}, "
                f"got {took}: {error}",
                hint=self._known,
            ) from error

    def failed(self, doing: str, error: Exception) -> Exception:
        """What is told of an exception of the trainer's code: its last place there.

        What has a kind already, memory that could not be had and a fault of the device stay as they are.
        """
        if isinstance(error, WorkerError | MemoryError) or type(error).__name__ in (
            "OutOfMemoryError",
            "AcceleratorError",
        ):
            return error
        place = self._place(error)
        return WorkerError(
            Kind.INTERNAL,
            f"{doing} of {self._trainer}: {type(error).__name__}: {error}{f' ({place})' if place else ''}",
            hint="versions that may matter: " + ", ".join(self._versions()),
        )

    def _missing(self, found: Found, error: ImportError) -> WorkerError:
        """What is told of an import that lacks something: a package by name, or a file of the checkout."""
        wanted, place = error.name or "", self._place(error)
        by = f", which {place} imports" if place else ""
        top = wanted.split(".")[0]
        if isinstance(error, ModuleNotFoundError) and any(f.exists() for f in self._files(top)):
            return WorkerError(
                Kind.NOT_FOUND,
                f"import {found.module} of {self._trainer}: want module {wanted}{by}, got no file of it",
                hint=self._known,
            )
        if isinstance(error, ModuleNotFoundError):
            return WorkerError(
                Kind.NOT_FOUND,
                f"import {found.module} of {self._trainer}: want package {top}{by}, got none installed",
                hint=f"{sys.executable} -m pip install {top}; or --trainer-python with one that has it",
            )
        return WorkerError(
            Kind.NOT_FOUND,
            f"import {found.module} of {self._trainer}: {error}{f' ({place})' if place else ''}",
            hint=f"another version of {top or 'a package'} than the trainer was written for? Here: "
            + ", ".join(self._versions()),
        )

    def _files(self, module: str) -> list[Path]:
        """Where a module's text may be."""
        path = self.root.joinpath(*module.split("."))
        return [path.with_suffix(".py"), path / "__init__.py"]

    def _seen(self, file: Path) -> str:
        return str(file.relative_to(self.root))

    def _defined(self, file: Path) -> set[str]:
        """Names at the top of a file."""
        try:
            tree = ast.parse(file.read_bytes(), filename=str(file))
        except (OSError, SyntaxError, ValueError) as error:
            raise WorkerError(
                Kind.INVALID, f"read {self._seen(file)} of {self._trainer}: want Python's text, got {error}"
            ) from error
        return set(_names(tree.body))

    def _place(self, error: BaseException) -> str:
        """The last line of the checkout that led to an error."""
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if Path(frame.filename).is_relative_to(self.root):
                return f"{self._seen(Path(frame.filename))}:{frame.lineno}"
        return ""

    def _where(self, what: object) -> str:
        try:
            file = Path(inspect.getfile(what if _is_plain(what) else type(what)))
        except TypeError:
            return ""
        return f" in {self._seen(file)}" if file.is_relative_to(self.root) else ""

    def _versions(self) -> list[str]:
        """Versions of what a trainer of drafters stands on, as far as it is installed."""
        wanted = ("torch", "transformers", "triton", "accelerate", "datasets", "sglang", "yunchang")
        return [f"{name} {found}" for name in wanted if (found := version_of(name))]


def _is_plain(what: object) -> bool:
    """Whether a signature is the thing's own: a class or a function, and no module of torch."""
    return inspect.isclass(what) or inspect.isroutine(what)


def version_of(package: str) -> str:
    """An installed package's version, or an empty text."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """Names that statements define: also under a condition, and by importing them."""
    for statement in body:
        match statement:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield statement.name
            case ast.Assign():
                yield from (one.id for one in statement.targets if isinstance(one, ast.Name))
            case ast.Import() | ast.ImportFrom():
                yield from (one.asname or one.name for one in statement.names)
            case ast.If() | ast.Try():
                yield from _names([*statement.body, *statement.orelse])
