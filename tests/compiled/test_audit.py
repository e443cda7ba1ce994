"""The audited compile: whole even when JAX's cache knows the program, and without a trace on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from brim.compiled import Roles, audit_compile

SPEC = jax.ShapeDtypeStruct((40, 40), jnp.float32)


def lowered_step() -> Any:
    return jax.jit(lambda w, x: w - jax.grad(lambda w: jnp.tanh(x @ w).sum())(w), donate_argnums=0).lower(SPEC, SPEC)


@pytest.fixture
def disk_cache(tmp_path: Path) -> Iterator[Path]:
    """JAX's persistent cache in an empty folder, for everything."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path / "cache"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield tmp_path / "cache"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def entries(cache: Path) -> int:
    return len(list(cache.glob("jit_*-cache")))


def test_a_program_that_the_cache_knows_is_audited_in_full(disk_cache: Path) -> None:
    lowered_step().compile()
    known = entries(disk_cache)
    assert known == 1
    report = audit_compile(lowered_step()).memory_report(Roles(parameters="w", batch="x"))
    assert report.owners["parameters"] == report.owners["batch"] == 4 * 40 * 40
    assert entries(disk_cache) == known
    jax.clear_caches()
    jax.jit(lambda x: x * 2).lower(SPEC).compile()
    assert entries(disk_cache) == known + 1  # the cache is on again


def test_the_same_program_has_the_same_report_again() -> None:
    first, second = (audit_compile(lowered_step()).memory_report() for _ in range(2))
    assert first == second


def test_what_was_compiled_runs() -> None:
    audit = audit_compile(lowered_step())
    assert audit.compiled(jnp.ones((40, 40)), jnp.zeros((40, 40))).shape == (40, 40)


def test_nothing_stays_on_disk_also_when_xla_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    audit_compile(lowered_step())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such_option"):
        audit_compile(lowered_step(), {"xla_no_such_option": "1"})
    assert list(tmp_path.iterdir()) == []
    assert jax.config.jax_enable_compilation_cache
