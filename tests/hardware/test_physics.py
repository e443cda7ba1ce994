"""Every entry of devices/*.toml held to what physics and the architecture allow.

The tables here are written from NVIDIA's papers and the CUDA guide, independently of the entries.
"""

from __future__ import annotations

import dataclasses
import re

import pytest

from brim.hardware.entries import SOURCES, shipped
from brim.hardware.facts import FEATURES
from brim.hardware.names import named

GIB = 2**30
GPUS = sorted(name for name, entry in shipped().items() if entry.platform == "gpu")
TPUS = sorted(set(shipped()) - set(GPUS))

# Dense FLOP per SM and clock, sums in float32. FP64 and FP32 of the faster of CUDA and tensor cores.
RATES = {
    "Volta GV100": {"float64": 64, "float32": 128, "float16": 1024},
    "Turing": {"float64": 4, "float32": 128, "float16": 1024},
    "Ampere GA100": {"float64": 128, "float32": 128, "tensorfloat32": 1024, "bfloat16": 2048, "float16": 2048},
    "Ampere": {"float64": 4, "float32": 256, "tensorfloat32": 512, "bfloat16": 1024, "float16": 1024},
    "Ada": {
        **{"float64": 4, "float32": 256, "tensorfloat32": 512, "bfloat16": 1024, "float16": 1024},
        "float8": 2048,
    },
    "Hopper GH100": {
        **{"float64": 256, "float32": 256, "tensorfloat32": 2048, "bfloat16": 4096, "float16": 4096},
        "float8": 8192,
    },
    "Blackwell GB100": {
        **{"float64": 128, "float32": 256, "tensorfloat32": 4096, "bfloat16": 8192, "float16": 8192},
        "float8": 16384,
    },
}
RATES["Blackwell"] = RATES["Ada"]

# Compute capability: shared memory per SM and the most a block may ask for (KiB), threads per SM, FP32 cores per SM.
LIMITS = {
    (7, 0): (96, 96, 2048, 64),
    (7, 5): (64, 64, 1024, 64),
    (8, 0): (164, 163, 2048, 64),
    (8, 6): (100, 99, 1536, 128),
    (8, 9): (100, 99, 1536, 128),
    (9, 0): (228, 227, 2048, 128),
    (10, 0): (228, 227, 2048, 128),
    (12, 0): (100, 99, 1536, 128),
}
# Chip: compute capability, most SMs, widest bus in bits, most L2 in MiB.
CHIPS = {
    "TU102": ((7, 5), 72, 384, 6),
    "TU104": ((7, 5), 48, 256, 4),
    "GV100": ((7, 0), 84, 4096, 6),
    "GA100": ((8, 0), 128, 6144, 48),
    "GA102": ((8, 6), 84, 384, 6),
    "GA106": ((8, 6), 30, 192, 3),
    "AD102": ((8, 9), 144, 384, 96),
    "AD103": ((8, 9), 80, 256, 64),
    "AD104": ((8, 9), 60, 192, 48),
    "AD106": ((8, 9), 36, 128, 32),
    "GH100": ((9, 0), 144, 6144, 60),
    "GB100": ((10, 0), 160, 8192, 128),
    "GB202": ((12, 0), 192, 512, 128),
    "GB203": ((12, 0), 84, 256, 64),
}
GIGATRANSFERS = {"3.0": 8, "4.0": 16, "5.0": 32}


def rates_of(name: str) -> dict[str, int]:
    """FLOP per SM and clock; GeForce tensor cores sum in float32 at half their rate."""
    entry = shipped()[name]
    rates = RATES.get(entry.architecture) or RATES[entry.architecture.split()[0]]
    if "GeForce" not in entry.kind:
        return rates
    return {dtype: rate if dtype in ("float64", "float32") else rate // 2 for dtype, rate in rates.items()}


@pytest.mark.parametrize("name", shipped())
def test_memory_grows_from_usable_to_total_to_what_is_on_the_box(name):
    entry, device = shipped()[name], named(name)
    assert 0 < device.usable_bytes < device.memory_bytes <= entry.nominal_bytes
    assert device.usable_bytes > 0.86 * device.memory_bytes
    # Error correction takes 1/16 of GDDR memory, the driver some hundred MB more.
    assert device.memory_bytes > 0.90 * entry.nominal_bytes
    assert entry.nominal_bytes % GIB == 0


@pytest.mark.parametrize("name", GPUS)
def test_bandwidth_is_bus_width_times_data_rate(name):
    entry = shipped()[name]
    bus = entry.memory_bus_bits * entry.memory_bits_per_pin_per_second / 8
    assert entry.bandwidth_bytes_per_second == pytest.approx(bus, rel=0.01)
    stacks = entry.memory_bus_bits >= 1024
    assert 1e9 < entry.memory_bits_per_pin_per_second < (10e9 if stacks else 32e9)
    assert entry.memory_bus_bits % (1024 if stacks else 32) == 0


@pytest.mark.parametrize("name", GPUS)
def test_peaks_are_cores_times_clock_times_rate_of_the_architecture(name):
    entry = shipped()[name]
    peaks = {dtype: peak for dtype, peak in dataclasses.asdict(entry.peak_flops).items() if peak is not None}
    rates = rates_of(name)
    assert peaks.keys() == rates.keys()
    for dtype, peak in peaks.items():
        on_tensor_cores = dtype not in ("float64", "float32")
        clock = entry.matrix_clock_ghz if on_tensor_cores and entry.matrix_clock_ghz else entry.target.clock_rate_ghz
        assert peak == pytest.approx(entry.target.core_count * clock * 1e9 * rates[dtype], rel=0.03), dtype


@pytest.mark.parametrize("name", GPUS)
def test_types_keep_the_ratios_that_tensor_cores_give_them(name):
    peaks = shipped()[name].peak_flops
    if peaks.bfloat16 is not None:
        assert peaks.float16 == peaks.bfloat16
        assert peaks.tensorfloat32 == pytest.approx(peaks.bfloat16 / 2, rel=0.01)
    if peaks.float8 is not None:
        assert peaks.float8 == pytest.approx(2 * peaks.bfloat16, rel=0.01)
    assert peaks.float32 <= (peaks.tensorfloat32 or peaks.float16)
    assert (peaks.float64 > peaks.float32 / 4) == (shipped()[name].memory_bus_bits >= 1024)  # data center chips only


@pytest.mark.parametrize("name", GPUS)
def test_limits_are_those_of_the_compute_capability_and_the_chip(name):
    entry = shipped()[name]
    shared, most_of_a_block, threads, fpus = LIMITS[entry.compute_capability]
    target = entry.target
    assert (target.shared_memory_per_core, target.shared_memory_per_block_optin) == (
        shared * 1024,
        most_of_a_block * 1024,
    )
    assert (target.threads_per_core_limit, target.fpus_per_core) == (threads, fpus)
    capability, cores, bus, l2 = CHIPS[entry.architecture.split()[1]]
    assert entry.compute_capability == capability
    assert 0.6 * cores < target.core_count <= cores
    assert entry.memory_bus_bits <= bus
    assert 0.5 * l2 * 2**20 < target.l2_cache_size <= l2 * 2**20
    assert entry.matrix_clock_ghz is None or entry.matrix_clock_ghz < target.clock_rate_ghz < 3


@pytest.mark.parametrize("name", GPUS)
def test_the_host_link_has_the_line_rate_of_its_generation(name):
    entry = shipped()[name]
    generation, lanes = re.fullmatch(r"PCIe (\d\.0) x(\d+)", entry.host_link).groups()
    line_rate = GIGATRANSFERS[generation] * 1e9 * int(lanes) * 128 / 130 / 8
    assert entry.host_link_bytes_per_second == pytest.approx(line_rate, rel=0.005)
    assert entry.host_link_bytes_per_second < entry.bandwidth_bytes_per_second / 8


@pytest.mark.parametrize("name", shipped())
def test_a_peak_is_there_exactly_where_the_device_can_use_it(name):
    device = named(name)
    for dtype in ("float16", "bfloat16", "tensorfloat32", "float8"):
        assert device.can(dtype) == (getattr(device.peak_flops, dtype) is not None), dtype
    assert device.can("cudnn_attention") == (device.platform == "gpu" and device.compute_capability >= (8, 0))
    assert all(device.can(feature) != bool(device.why_not(feature)) for feature in FEATURES)


@pytest.mark.parametrize("name", TPUS)
def test_a_tpu_has_a_topology_of_one_chip_and_no_description(name):
    entry = shipped()[name]
    assert re.fullmatch(r"v\d[a-z](:1x1)(x1)?", entry.topology)
    assert (entry.target, entry.compute_capability) == (None, None)
    assert entry.peak_flops.float32 == entry.peak_flops.bfloat16
    # FLOP per byte: catches a lost zero.
    assert 100 < entry.peak_flops.bfloat16 / entry.bandwidth_bytes_per_second < 700


@pytest.mark.parametrize("name", shipped())
def test_every_number_has_a_source(name):
    entry = shipped()[name]
    numbers = {
        f"{key}.{inner}" if isinstance(value, dict) else key
        for key, value in dataclasses.asdict(entry).items()
        if key not in ("kind", "platform", "architecture", "aliases", "stands_for", "notes", "sources")
        for inner in (value if isinstance(value, dict) else [None])
        if (value[inner] if isinstance(value, dict) else value) is not None
    }
    assert entry.sources.keys() == numbers
    for source in entry.sources.values():
        assert re.match(r"\w+", source)[0] in SOURCES


@pytest.mark.parametrize("name", GPUS)
def test_a_derived_peak_says_how(name):
    entry = shipped()[name]
    for dtype, peak in dataclasses.asdict(entry.peak_flops).items():
        source = entry.sources.get(f"peak_flops.{dtype}", "")
        if source.startswith("derived: "):
            cores, clock, rate = re.fullmatch(r"derived: (\d+) x ([\d.]+) GHz x (\d+)", source).groups()
            assert peak == pytest.approx(int(cores) * float(clock) * 1e9 * int(rate), rel=1e-3)


@pytest.mark.parametrize("name", GPUS)
def test_the_description_for_the_compiler_holds_the_facts(name):
    entry, text = shipped()[name], named(name).target_config()
    major, minor = entry.compute_capability
    assert f"cuda_compute_capability {{ major: {major} minor: {minor} }}" in text
    facts = {
        **dataclasses.asdict(entry.target),
        "device_memory_size": entry.memory_bytes,
        "memory_bandwidth": round(entry.bandwidth_bytes_per_second),
        "registers_per_core_limit": 65536,
    }
    for key, value in facts.items():
        assert re.findall(rf"^  {key}: (\S+)$", text, re.MULTILINE) == [str(value)]
    assert text.endswith(f'device_description_str: "{entry.kind}"')
    assert text.count("{") == text.count("}") == 4
