"""Strict settings for every test: shapes in signatures are executed, warnings are errors, nothing touches a GPU."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers share what the process that starts them has set
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="brim-test-cache-")
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

import jaxtyping
import pytest

SHAPE_CHECKED = ("brim.ops", "brim.program", "brim.models", "brim.techniques.blockwise_attention")
_hook = jaxtyping.install_import_hook(SHAPE_CHECKED, "beartype.beartype")
_hook.__enter__()


def _plan_extra_is_installed() -> bool:
    return any(importlib.util.find_spec(f"jax_cuda{major}_plugin") is not None for major in (12, 13))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count what needs the `plan` extra as skipped when it is not installed."""
    if _plan_extra_is_installed():
        return
    skip = pytest.mark.skip(reason="needs the `plan` extra: make test-plan")
    for item in items:
        if item.get_closest_marker("plan") is not None:
            item.add_marker(skip)
