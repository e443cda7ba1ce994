from __future__ import annotations

from dataclasses import replace

import pytest

from brim.errors import DeviceError
from brim.hardware import device, host, nvidia, probe
from brim.hardware.device import Device, PeakFlops, named
from brim.hardware.facts import FEATURES

# The H100's own description, as XLA wrote it on a machine that had one; its memory there was 47 MiB less than in XLA's
# table of GPUs, which devices/*.toml follows.
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
    assert [card.can("tensorfloat32") for card in (turing, ampere, ada)] == [False, True, True]
    assert turing.why_not("bfloat16") == "bfloat16 needs compute capability 8.0; Some Card has 7.5"


def test_an_unknown_feature_and_an_unknown_target_are_errors():
    with pytest.raises(DeviceError) as caught:
        named("h100").can("bfloat_16")
    assert caught.value.hint == "did you mean `bfloat16`?"
    with pytest.raises(DeviceError, match="Some Card"):
        a_gpu((8, 0)).target_config()


def test_a_tpu_multiplies_in_bfloat16_and_goes_by_its_topology():
    tpu = named("v6e")
    assert [feature for feature in FEATURES if tpu.can(feature)] == ["bfloat16"]
    assert tpu.why_not("float8") == "the matrix units of TPU v6 lite take bfloat16, not float8"
    assert tpu.why_not("cudnn_attention") == "cudnn_attention needs a GPU; this device is a TPU (TPU v6 lite)"
    assert tpu.topology() == {"platform": "tpu", "topology_name": "v6e:1x1"}
    with pytest.raises(DeviceError, match=r"TPU v6 lite is a TPU: .* v6e:1x1") as caught:
        tpu.target_config()
    assert "Device.topology()" in caught.value.hint


def test_a_gpu_goes_by_its_description_and_a_cpu_by_none():
    gpu = named("4090")
    assert gpu.topology() == {"platform": "cuda", "target_config": gpu.target_config(), "topology": "1x1x1"}
    with pytest.raises(DeviceError, match="Some CPU"):
        Device("cpu", "cpu", "Some CPU", 10, 9, None, 1.0, PeakFlops(1.0), "measured").topology()


def test_usable_memory_is_what_is_free_less_a_share_for_what_no_plan_sees():
    card = a_gpu((8, 0))
    gib = 2**30
    assert replace(card, free_bytes=100 * gib).usable_bytes == 97 * gib
    assert replace(card, free_bytes=8 * gib).usable_bytes == 8 * gib - 512 * 2**20
    assert replace(card, platform="cpu", free_bytes=100 * gib).usable_bytes == 90 * gib


def gpu_here(name: str, total: int = 23 * 2**30, free: int = 20 * 2**30) -> nvidia.Gpu:
    return nvidia.Gpu("GPU-1", name, "570.1", (8, 9), total, free)


@pytest.fixture
def pretend_gpu(monkeypatch):
    """A machine with one GPU on which JAX has not started."""

    def pretend(name: str) -> None:
        monkeypatch.setattr(nvidia, "query", lambda: nvidia.Answer((gpu_here(name),)))
        monkeypatch.setattr(device, "jax_has_started", lambda: False)
        monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: object())
        monkeypatch.delenv("JAX_PLATFORMS", raising=False)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return pretend


def test_a_known_gpu_has_published_speeds_and_the_memory_that_is_free_now(pretend_gpu):
    pretend_gpu("NVIDIA GeForce RTX 4090")
    found = device.detect()
    assert (found.name, found.platform, found.source) == ("rtx-4090", "gpu", "published")
    assert (found.memory_bytes, found.free_bytes) == (23 * 2**30, 20 * 2**30)


def test_an_unknown_gpu_is_measured(pretend_gpu, monkeypatch):
    pretend_gpu("NVIDIA Future 9000")
    monkeypatch.setattr(probe, "measure_gpu", lambda kind: probe.Speeds(1e12, 2e12, 3e11))
    found = device.detect()
    assert (found.name, found.kind, found.source) == ("gpu", "NVIDIA Future 9000", "measured")
    assert found.peak_flops.of("bfloat16") == 2e12
    assert found.bandwidth_bytes_per_second == 3e11


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A100-SXM4-40GB MIG 3g.20gb"])
def test_part_of_a_name_is_not_the_card(name, pretend_gpu, monkeypatch):
    pretend_gpu(name)
    monkeypatch.setattr(probe, "measure_gpu", lambda kind: probe.Speeds(1e12, 2e12, 3e11))
    found = device.detect()
    assert (found.name, found.kind, found.source, found.target) == ("gpu", name, "measured", None)
    assert device.here() is None


def test_the_name_of_the_gpu_that_is_here_needs_no_measuring(pretend_gpu, monkeypatch):
    pretend_gpu("NVIDIA GeForce RTX 4090")
    monkeypatch.delattr(probe, "measure_gpu")
    assert device.here() == "rtx-4090"
    monkeypatch.setattr(nvidia, "query", lambda: nvidia.Answer(()))
    assert device.here() is None


def test_the_driver_tells_of_what_kind_the_gpus_are_that_a_process_sees(pretend_gpu, monkeypatch):
    pretend_gpu("NVIDIA GeForce RTX 4090")
    assert device.driver_shows("NVIDIA GeForce RTX 4090")
    assert not device.driver_shows("NVIDIA GeForce RTX 4080")
    assert not device.driver_shows("NVIDIA GeForce RTX 4090 Laptop GPU")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not device.driver_shows("NVIDIA GeForce RTX 4090")


def test_a_name_with_quotes_is_one_text_for_the_compiler():
    card = replace(named("4090"), kind='My "fast" \\ card\nof 2026 \u00e9')
    assert card.target_config().endswith('device_description_str: "My \\"fast\\" \\\\ card\\nof 2026 \u00e9"')


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
