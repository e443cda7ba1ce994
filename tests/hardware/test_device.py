from __future__ import annotations

import pytest

from brim.errors import DeviceError
from brim.hardware import device, host, nvidia, probe
from brim.hardware.device import Device, PeakFlops, named, names

# The H100's own description, as XLA wrote it on a machine that had one; its memory there was 47 MiB less than in XLA's
# table of GPUs, which devices.toml follows.
H100_AS_XLA_WRITES_IT = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84929347584
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 7 }
runtime_version { major: 12 minor: 8 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
MEMORY = "gpu_device_info.device_memory_size"


def proto_fields(text: str) -> dict[str, str]:
    """Dotted names and values of a text proto; zeros are left out, as proto3 does."""
    fields, path = {}, []
    words = iter(text.replace("{", " { ").replace("}", " } ").split('"'))
    tokens: list[str] = []
    for number, part in enumerate(words):
        tokens += [part] if number % 2 else part.split()
    for here, after in zip(tokens, [*tokens[1:], ""], strict=True):
        if here == "}":
            path.pop()
        elif after == "{":
            path.append(here)
        elif here.endswith(":") and after != "0":
            fields[".".join([*path, here[:-1]])] = after
    return fields


def test_target_of_the_h100_is_what_xla_itself_writes():
    ours, theirs = proto_fields(named("h100").target_config()), proto_fields(H100_AS_XLA_WRITES_IT)
    assert len(theirs) == 24
    assert int(ours.pop(MEMORY)) == pytest.approx(int(theirs.pop(MEMORY)), rel=1e-3)
    assert ours == theirs


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("h100", "h100"),
        ("H100", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("a100", "a100-80"),
        ("A100_80GB", "a100-80"),
        ("RTX 4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("geforce rtx3060", "rtx-3060"),
    ],
)
def test_names_are_forgiving(typed, name):
    assert named(typed).name == name


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(DeviceError, match="no device called `rtx-4080`") as caught:
        named("rtx-4080")
    assert caught.value.hint == "did you mean `rtx-4090`?"


@pytest.mark.parametrize("name", names())
def test_every_table_is_complete_and_plausible(name):
    found = named(name)
    assert found.platform == "gpu"
    assert 0 < found.free_bytes < found.memory_bytes
    # A card's products need between 20 and 400 FLOP per byte of bandwidth to be worth their time: catches a lost zero.
    assert 20 < found.peak_flops.of("bfloat16") / found.bandwidth_bytes_per_second < 400
    # Twice the fused multiply-adds of its CUDA cores; none of these cards' boost clocks is off by a fifth.
    target = found.target
    cores = 2 * target.core_count * target.fpus_per_core * target.clock_rate_ghz * 1e9
    assert found.peak_flops.float32 == pytest.approx(cores, rel=0.2)


def test_float32_products_run_as_tf32_and_unlisted_types_as_float32():
    peak = PeakFlops(float32=1.0, tensorfloat32=8.0, bfloat16=16.0, float8=32.0)
    assert peak.of("float32") == 8
    assert peak.of("bfloat16") == 16
    assert peak.of("float8_e4m3fn") == 32
    assert peak.of("float16") == 1
    assert PeakFlops(float32=1.0).of("float32") == 1


def a_gpu(capability: tuple[int, int]) -> Device:
    return Device("gpu", "gpu", "Some Card", 10, 9, capability, 1.0, PeakFlops(1.0), "measured")


def test_features_follow_the_compute_capability():
    turing, ampere, ada = a_gpu((7, 5)), a_gpu((8, 6)), a_gpu((8, 9))
    assert [card.can("float16") for card in (turing, ampere, ada)] == [True, True, True]
    assert [card.can("bfloat16") for card in (turing, ampere, ada)] == [False, True, True]
    assert [card.can("cudnn_attention") for card in (turing, ampere, ada)] == [False, True, True]
    assert [card.can("float8") for card in (turing, ampere, ada)] == [False, False, True]
    assert turing.why_not("bfloat16") == "bfloat16 needs compute capability 8.0; Some Card has 7.5"


def test_an_unknown_feature_and_an_unknown_target_are_errors():
    with pytest.raises(DeviceError) as caught:
        named("h100").can("bfloat_16")
    assert caught.value.hint == "did you mean `bfloat16`?"
    with pytest.raises(DeviceError, match="Some Card"):
        a_gpu((8, 0)).target_config()


def gpu_here(name: str, total: int = 24 * 2**30, free: int = 20 * 2**30) -> nvidia.Gpu:
    return nvidia.Gpu("GPU-1", name, "570.1", (8, 9), total, free)


@pytest.fixture
def pretend_gpu(monkeypatch):
    """A machine with one GPU on which JAX has not started."""

    def pretend(name: str) -> None:
        monkeypatch.setattr(nvidia, "query", lambda: nvidia.Answer((gpu_here(name),)))
        monkeypatch.setattr(device, "_jax_has_started", lambda: False)
        monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: object())
        monkeypatch.delenv("JAX_PLATFORMS", raising=False)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return pretend


def test_a_known_gpu_has_published_speeds_and_the_memory_that_is_free_now(pretend_gpu):
    pretend_gpu("NVIDIA GeForce RTX 4090")
    found = device.detect()
    assert (found.name, found.platform, found.source) == ("rtx-4090", "gpu", "published")
    assert (found.memory_bytes, found.free_bytes) == (24 * 2**30, 20 * 2**30)


def test_an_unknown_gpu_is_measured(pretend_gpu, monkeypatch):
    pretend_gpu("NVIDIA Future 9000")
    monkeypatch.setattr(probe, "measure_gpu", lambda kind: probe.Speeds(1e12, 2e12, 3e11))
    found = device.detect()
    assert (found.name, found.kind, found.source) == ("gpu", "NVIDIA Future 9000", "measured")
    assert found.peak_flops.of("bfloat16") == 2e12
    assert found.bandwidth_bytes_per_second == 3e11


def test_a_gpu_that_jax_already_holds_gives_what_jax_has_left(pretend_gpu, monkeypatch):
    pretend_gpu("NVIDIA GeForce RTX 4090")
    monkeypatch.setattr(device, "_free_in_jax", lambda: 7 * 2**30)
    assert device.detect().free_bytes == 7 * 2**30


@pytest.mark.parametrize(
    ("gpus", "variables", "platform"),
    [
        (1, {}, "gpu"),
        (1, {"JAX_PLATFORMS": "cuda,cpu"}, "gpu"),
        (1, {"JAX_PLATFORMS": "cpu"}, "cpu"),
        (0, {}, "cpu"),
    ],
)
def test_where_jax_will_run(gpus, variables, platform, monkeypatch):
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: object())
    assert device.platform_here(gpus, variables) == platform
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: None)
    assert device.platform_here(gpus, variables) == "cpu"


def test_the_cpu_that_is_here_counts_as_a_device(monkeypatch):
    monkeypatch.setattr(probe, "measure_cpu", lambda: probe.Speeds(5e10, 4e10, 1e10))
    found = device.detect()
    assert (found.name, found.platform, found.source) == ("cpu", "cpu", "measured")
    assert found.kind == host.processor_name()
    assert 0 < found.free_bytes <= found.memory_bytes
    assert found.can("bfloat16")
    assert not found.can("cudnn_attention")
