"""Import rules: a layer imports layers to its right only, and the scheduler SDK stands alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "dflash_runner"

# Left to right. A package's name stands for all of its modules, which may import each other.
LAYERS = (
    ("serve", "job.__main__", "probe"),
    ("job", "target", "drafter"),
    ("evaluation", "warmup_drafter", "warmup_target", "imaging"),
    ("recorded",),
    ("worker", "trainer", "warmup", "frozen", "buffers", "standing"),
    ("replay", "building", "kept", "figures"),
    ("preparation", "row_kernels"),
    ("decode", "serving", "loss", "packing", "pretrained", "image", "export", "nccl"),
    ("optim", "flex", "kernels", "products", "data_writer", "tokenizer", "arenas"),
    ("reduction", "update"),
    ("communicator", "compiled", "flat", "fp8", "row_tiles"),
    (
        "anchors",
        "model",
        "capture",
        "head",
        "data",
        "corpus",
        "oracle",
        "watch",
        "whole",
        "tiles",
        "snapshot",
    ),
    ("masks", "waits"),
    ("staging",),
    ("attention", "operations", "fold", "image_header", "tensorfile", "certificate", "devices"),
    ("host",),
    ("arena", "cuda_arena", "lane"),
    ("orders", "replies"),
    ("slots", "cuda_memory", "cuda_driver", "device_checksum"),
    ("parts",),
    ("frames", "config", "errors", "log", "checksum", "scheduler"),
)
GENERATED = ("job.v1", "scheduler.v1", "worker.v1")


def layer_of(module: str) -> int:
    """The layer that names the module or, failing that, its package."""
    for wanted in (module, module.split(".")[0]):
        for number, names in enumerate(LAYERS):
            if wanted in names:
                return number
    raise AssertionError(f"{module} stands in no layer: put it into LAYERS")


def imports_of(tree: ast.Module, *, exists) -> set[str]:
    """Modules of this package that a module imports, by their names below it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dflash_runner":
            base = node.module.split(".")[1:]
            for name in node.names:
                found.add(".".join([*base, name.name] if exists([*base, name.name]) else base))
        elif isinstance(node, ast.Import):
            names = (name.name for name in node.names)
            own = (name for name in names if name.startswith("dflash_runner."))
            found |= {name.removeprefix("dflash_runner.") for name in own}
    return {module for module in found if module and not module.startswith(GENERATED)}


def forbidden(importer: str, imported: str) -> bool:
    """Whether the rule refuses an import."""
    same_package = importer.split(".")[0] == imported.split(".")[0] and "." in importer
    return not same_package and layer_of(imported) <= layer_of(importer)


def exists(parts: list[str]) -> bool:
    """Whether a module of that name is there."""
    return (PACKAGE.joinpath(*parts)).with_suffix(".py").exists()


def modules() -> list[tuple[str, Path]]:
    """Every hand-written module, by its name below the package."""
    out = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if not name.endswith("__init__") and "_pb2" not in name:
            out.append((name, path))
    return out


@pytest.mark.parametrize(("name", "path"), modules(), ids=[name for name, _ in modules()])
def test_a_layer_imports_to_its_right_only(name, path):
    wrong = [i for i in imports_of(ast.parse(path.read_text()), exists=exists) if forbidden(name, i)]
    assert not wrong, f"{name} imports {wrong}, which stand beside it or to its left"


@pytest.mark.parametrize(
    ("importer", "imported", "refused"),
    [
        ("serve", "worker.loop", False),
        ("worker.loop", "worker.role", False),  # inside one package
        ("model", "attention", False),
        ("attention", "model", True),  # to the left
        ("loss", "packing", True),  # beside
        ("lane", "arena", True),
        ("errors", "log", True),
        ("export", "job.whole", True),  # a job is no part of the drafter
        ("scheduler.serving", "scheduler.errors", False),
        ("scheduler.errors", "errors", True),  # the SDK stands alone
    ],
)
def test_the_rule_itself(importer, imported, refused):
    assert forbidden(importer, imported) is refused


SDK_NEEDS = {"dflash_runner", "google", "grpc", "msgspec"}


def test_the_scheduler_sdk_needs_no_other_package():
    for name, path in modules():
        if name.startswith("scheduler."):
            needs = {n.split(".")[0] for n in all_imports(ast.parse(path.read_text()))}
            assert needs - sys.stdlib_module_names <= SDK_NEEDS, name


def all_imports(tree: ast.Module) -> set[str]:
    """Every module that is imported, wherever it stands."""
    nodes = list(ast.walk(tree))
    named = {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    return named | {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}


def test_torch_compile_stands_in_one_module():
    users = [name for name, path in modules() if "torch.compile(" in path.read_text()]
    assert users == ["compiled"], users
