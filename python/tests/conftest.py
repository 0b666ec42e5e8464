"""Which tests `go test -short` leaves out: those of files that start workers, train or load models."""

from __future__ import annotations

import pytest

SLOW = (
    "test_arena",
    "test_cuda_arena",
    "test_data_parallel",
    "test_export",
    "test_families",
    "test_flex",
    "test_job_",
    "test_model",
    "test_nccl",
    "test_pretrained",
    "test_watch",
    "test_worker_",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them by the beginning of their file's name."""
    for item in items:
        if item.path.stem.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
