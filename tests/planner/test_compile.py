"""Compiling the step for the device that is here, and for one that is not."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from jax.experimental import topologies
from jax.experimental.compilation_cache import compilation_cache

from brim.errors import DeviceError, TechniqueError
from brim.hardware.device import CUDA_PLUGINS, named
from brim.planner import Target, compile_window, target
from brim.techniques import Accumulation, Precision, Recipe, Rematerialization
from planner.stacked import CPU, stacked_program

RECIPE = Recipe.of(2, Accumulation(2), Rematerialization("full"))


@pytest.fixture
def disk_cache(tmp_path: Path) -> Iterator[Path]:
    """JAX's persistent cache in an empty folder, for everything."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_memory_of_a_program_from_the_disk_cache_is_right(disk_cache: Path) -> None:
    program = stacked_program()
    fresh = compile_window(program, RECIPE, CPU)
    assert len(list(disk_cache.glob("jit__window*"))) == 1
    jax.clear_caches()
    again = compile_window(program, RECIPE, CPU)
    assert len(list(disk_cache.glob("jit__window*"))) == 1  # the second compile was a hit
    assert again.memory == fresh.memory
    assert fresh.memory.temporaries > 0


def test_a_recipe_that_cannot_work_is_an_error() -> None:
    with pytest.raises(TechniqueError, match="precision"):
        compile_window(
            stacked_program(), Recipe.of(1, Precision("bfloat16")), replace(named("a100"), compute_capability=(7, 5))
        )


def test_compiler_options_are_per_compile_and_a_wrong_one_is_an_exception() -> None:
    recipe = Recipe.of(1, compiler_options={"xla_no_such_option": "1"})
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such_option"):
        compile_window(stacked_program(), recipe, CPU)


@pytest.mark.skipif(any(map(importlib.util.find_spec, CUDA_PLUGINS)), reason="the plan extra is installed")
def test_without_the_plugin_the_error_says_how_to_install_it() -> None:
    with pytest.raises(DeviceError, match="cannot compile for NVIDIA") as caught:
        Target.of(named("h100"))
    assert "pip install 'brim[plan]'" in caught.value.hint


@pytest.mark.plan
def test_a_gpu_that_is_not_here() -> None:
    device, program = named("h100"), stacked_program()
    plain, full = (compile_window(program, Recipe.of(8, technique), device).memory for technique in TECHNIQUES)
    assert sum(plain.owners.values()) == plain.peak_bytes
    assert plain.arguments == compile_window(program, Recipe.of(8), CPU).memory.arguments
    assert full.temporaries < plain.temporaries


@pytest.mark.plan
def test_without_a_driver_and_without_settings_compiling_for_a_gpu_works_and_prints_nothing() -> None:
    code = "from brim.hardware.chatter import without_chatter\n"
    code += "with without_chatter():\n from brim.planner import Target\n from brim.hardware.device import named\n"
    code += "print(Target.of(named('h100')).platform)"
    found = in_fresh_process(code)
    assert (found.returncode, found.stdout, found.stderr) == (0, "cuda\n", "")


@pytest.mark.plan
def test_when_jax_was_started_on_its_own_before_the_error_says_what_to_set() -> None:
    code = "import jax; jax.devices(); from brim.hardware.device import named; from brim.planner import Target\n"
    code += "try: Target.of(named('h100'))\nexcept Exception as error: print(error.hint)"
    assert "JAX_PLATFORMS=cpu" in in_fresh_process(code).stdout


@pytest.mark.plan
def test_a_description_that_the_compiler_refuses_is_not_blamed_on_jax() -> None:
    with pytest.raises(DeviceError, match=r"cannot compile for NVIDIA H100 .*target_config") as caught:
        Target.of(replace(named("h100"), compute_capability=(90, "{")))  # type: ignore[arg-type]
    assert "the compiler refuses this description" in caught.value.hint


@pytest.mark.plan
def test_a_card_with_quotes_in_its_name_is_compiled_for() -> None:
    device = replace(named("h100"), kind='My "fast" card')
    assert [found.device_kind for found in Target.of(device).sharding.device_set] == [device.kind]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("said", "started", "platforms", "hint"),
    [
        (NotImplementedError("topology not implemented for cuda"), True, None, "JAX was started before brim"),
        (NotImplementedError("topology not implemented for cuda"), False, None, "`brim doctor`"),
        (NotImplementedError("topology not implemented for cuda"), True, "cpu", "`brim doctor`"),
        (RuntimeError("Unable to load CUDA\nIs it installed?"), True, None, "`brim doctor`"),
        (RuntimeError(), True, "cpu", "`brim doctor`"),
        (jax.errors.JaxRuntimeError("FAILED_PRECONDITION: parse"), True, None, "the compiler refuses this description"),
    ],
)
def test_the_hint_is_that_jax_was_started_before_only_where_it_was(
    said: Exception, started: bool, platforms: str | None, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**description: str) -> None:
        raise said

    monkeypatch.setattr(topologies, "get_topology_desc", refuse)
    monkeypatch.setattr(target, "is_here", lambda device: False)
    monkeypatch.setattr(target, "jax_has_started", lambda: started)
    monkeypatch.setattr(target.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(
        target, "jax", SimpleNamespace(config=SimpleNamespace(jax_platforms=platforms), errors=jax.errors)
    )
    with pytest.raises(DeviceError, match="cannot compile for NVIDIA H100") as caught:
        Target.of(named("h100"))
    assert hint in caught.value.hint
    assert (str(said).splitlines() or ["RuntimeError"])[0] in caught.value.message


def test_asking_about_a_card_that_the_driver_does_not_show_does_not_start_jax() -> None:
    code = "import sys; from dataclasses import replace; sys.path.insert(0, 'tests')\n"
    code += "from brim.hardware import nvidia; from brim.hardware.device import jax_has_started, named\n"
    code += "h200 = nvidia.Gpu('GPU-1', 'NVIDIA H200', '570.1', (9, 0), 2**37, 2**37)\n"
    code += "nvidia.query = lambda: nvidia.Answer((h200,))\n"
    code += "from brim.planner.target import is_here; from brim.training.assemble import assemble\n"
    code += "from brim.techniques import Recipe; from planner.stacked import stacked_program\n"
    code += "program, absent = stacked_program(), named('rtx-4090')\n"
    code += "print(is_here(absent), is_here(named('v6e')), jax_has_started())\n"
    code += "program.part_specs(); assemble(program, Recipe.of(2), absent); print(jax_has_started())\n"
    code += "print(is_here(named('h200')), jax_has_started())"
    found = in_fresh_process(code)
    assert found.stdout.splitlines() == ["False False False", "False", "False True"], found.stderr


def in_fresh_process(code: str) -> subprocess.CompletedProcess[str]:
    """Run some Python with JAX's platform left open, as people have it."""
    variables = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=False)


TECHNIQUES = Rematerialization(), Rematerialization("full")
