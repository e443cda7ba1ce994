"""Each fault is planted in a record of a healthy machine, and must be the only finding."""

from __future__ import annotations

import dataclasses

import pytest

from brim.hardware.doctor import Environment, Started, findings
from brim.hardware.nvidia import Gpu

RTX = Gpu("GPU-aaaa-1", "NVIDIA GeForce RTX 4090", "570.86.15", (8, 9), 24 * 2**30, 23 * 2**30)
CPU_MACHINE = Environment(
    python="3.11.7",
    packages={"jax": "0.10.2", "jaxlib": "0.10.2"},
    started=Started(devices=("cpu",), platform="cpu"),
)
GPU_MACHINE = dataclasses.replace(
    CPU_MACHINE,
    packages={**CPU_MACHINE.packages, "jax-cuda12-plugin": "0.10.2", "jax-cuda12-pjrt": "0.10.2"},
    gpus=(RTX,),
    started=Started(devices=(RTX.name,), platform="gpu"),
)


def with_packages(environment: Environment, **versions: str | None) -> Environment:
    changed = environment.packages | {name.replace("_", "-"): version for name, version in versions.items()}
    packages = {name: version for name, version in changed.items() if version}
    return dataclasses.replace(environment, packages=packages)


def with_variables(environment: Environment, **variables: str) -> Environment:
    return dataclasses.replace(environment, variables=variables)


def with_driver(environment: Environment, driver: str) -> Environment:
    return dataclasses.replace(environment, gpus=(dataclasses.replace(RTX, driver=driver),))


@pytest.mark.parametrize("healthy", [CPU_MACHINE, GPU_MACHINE, with_variables(GPU_MACHINE, JAX_PLATFORMS="cuda,cpu")])
def test_a_healthy_machine_has_no_finding(healthy):
    assert findings(healthy) == ()


def test_the_plan_extra_on_a_machine_without_a_gpu_is_healthy():
    assert findings(dataclasses.replace(GPU_MACHINE, gpus=(), started=CPU_MACHINE.started)) == ()


FAULTS = {
    "gpu-without-plugin": dataclasses.replace(CPU_MACHINE, gpus=(RTX,)),
    "xla-flag-refused": dataclasses.replace(
        CPU_MACHINE, xla_flags=("--xla_old=1",), refused_flags={"--xla_old=1": "this jaxlib does not know it"}
    ),
    "jax-missing": dataclasses.replace(with_packages(CPU_MACHINE, jax=None), started=Started()),
    "jax-does-not-start": dataclasses.replace(CPU_MACHINE, started=Started(complaint="RuntimeError: no backend")),
    "driver-broken": dataclasses.replace(CPU_MACHINE, gpu_complaint="Driver/library version mismatch"),
    "driver-too-old": with_driver(GPU_MACHINE, "470.12"),
    "gpu-hidden": dataclasses.replace(with_variables(GPU_MACHINE, JAX_PLATFORMS="cpu"), started=CPU_MACHINE.started),
    "gpu-not-used": dataclasses.replace(GPU_MACHINE, started=CPU_MACHINE.started),
    "plugin-mismatch": with_packages(GPU_MACHINE, jax_cuda12_plugin="0.9.0"),
    "two-plugins": with_packages(
        with_driver(GPU_MACHINE, "590.1"), jax_cuda13_plugin="0.10.2", jax_cuda13_pjrt="0.10.2"
    ),
    "memory-fraction-clash": with_variables(
        CPU_MACHINE, XLA_CLIENT_MEM_FRACTION=".9", XLA_PYTHON_CLIENT_MEM_FRACTION=".8"
    ),
    "memory-fraction-deprecated": with_variables(CPU_MACHINE, XLA_PYTHON_CLIENT_MEM_FRACTION=".8"),
    "memory-fraction-wrong": with_variables(CPU_MACHINE, XLA_CLIENT_MEM_FRACTION="90%"),
    "preallocation-off": with_variables(CPU_MACHINE, XLA_PYTHON_CLIENT_PREALLOCATE="false"),
    "allocator-without-pool": with_variables(
        CPU_MACHINE, XLA_PYTHON_CLIENT_ALLOCATOR="platform", XLA_PYTHON_CLIENT_PREALLOCATE="false"
    ),
    "allocator-unknown": with_variables(CPU_MACHINE, XLA_PYTHON_CLIENT_ALLOCATOR="bcf"),
    "libtpu-installed": with_packages(CPU_MACHINE, libtpu="0.0.52"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_the_one_finding(name):
    [finding] = findings(FAULTS[name])
    assert finding.name == name
    assert len(finding.message) > 20
    assert len(finding.hint) > 10


def only(environment: Environment):
    [finding] = findings(environment)
    return finding


def test_the_hint_names_the_cuda_that_the_driver_can_run():
    assert only(FAULTS["gpu-without-plugin"]).hint == 'pip install "brim[cuda12]"'
    newer = with_driver(FAULTS["gpu-without-plugin"], "580.65.06")
    assert only(newer).hint == 'pip install "brim[cuda13]"'


def test_a_hidden_gpu_is_told_from_one_that_cuda_hides():
    assert "JAX_PLATFORMS is `cpu`" in only(FAULTS["gpu-hidden"]).message
    hidden = dataclasses.replace(with_variables(GPU_MACHINE, CUDA_VISIBLE_DEVICES=""), started=CPU_MACHINE.started)
    assert "CUDA_VISIBLE_DEVICES is ``" in only(hidden).message


def test_the_cuda_13_plugin_needs_a_newer_driver_than_12():
    newer = with_packages(
        GPU_MACHINE,
        jax_cuda12_plugin=None,
        jax_cuda12_pjrt=None,
        jax_cuda13_plugin="0.10.2",
        jax_cuda13_pjrt="0.10.2",
    )
    assert "needs 580 or newer" in only(newer).message


def test_a_missing_half_of_the_plugin_is_named():
    assert "jax-cuda12-pjrt is missing" in only(with_packages(GPU_MACHINE, jax_cuda12_pjrt=None)).message


@pytest.mark.parametrize(
    ("fraction", "names"), [("0.92", []), ("1", ["memory-fraction-wrong"]), ("0", ["memory-fraction-wrong"])]
)
def test_a_fraction_leaves_cuda_some_room(fraction, names):
    found = findings(with_variables(GPU_MACHINE, XLA_CLIENT_MEM_FRACTION=fraction))
    assert [finding.name for finding in found] == names


def test_every_fault_is_reported_at_once():
    both = dataclasses.replace(FAULTS["libtpu-installed"], refused_flags={"--a=1": "why", "--b=1": "why"})
    assert [finding.name for finding in findings(both)] == ["xla-flag-refused", "xla-flag-refused", "libtpu-installed"]
