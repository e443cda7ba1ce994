"""A device of one's own: the same schema, read strictly, and held to what physics allows."""

from __future__ import annotations

import pytest

from brim.errors import SettingsError
from brim.hardware.names import find, reading_of

CARD = """
kind = "Some Card"
compute_capability = [8, 6]
nominal_bytes = 12_884_901_888
memory_bytes = [12_587_106_304, "measured here"]
bandwidth_bytes_per_second = 360e9
memory_bus_bits = 192
memory_bits_per_pin_per_second = 15e9

[peak_flops]
float32 = 12.7e12
bfloat16 = [25.5e12, "derived: 28 x 1.777 GHz x 512"]

[target]
core_count = 28
fpus_per_core = 128
clock_rate_ghz = 1.777
l2_cache_size = 2_359_296
shared_memory_per_core = 102_400
shared_memory_per_block_optin = 101_376
threads_per_core_limit = 1536
"""
TPU = """
[my-tpu]
kind = "TPU v9"
platform = "tpu"
topology = "v9:1x1x1"
memory_bytes = 1_000_000_000_000
bandwidth_bytes_per_second = 9e12
peak_flops = { float32 = 1e15, bfloat16 = 1e15 }
"""


@pytest.fixture
def described(tmp_path):
    def describe(text: str, name: str = "card.toml") -> str:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return describe


def test_a_file_of_ones_own_is_a_device(described):
    device = find(described(CARD))
    assert (device.name, device.kind, device.platform) == ("card", "Some Card", "gpu")
    assert device.memory_bytes == 12_587_106_304
    assert device.peak_flops.of("bfloat16") == 25.5e12
    assert "core_count: 28" in device.target_config()
    assert reading_of(described(CARD)) is None


def test_one_named_table_is_a_device_too_and_a_tpu_goes_by_its_topology(described):
    device = find(described(TPU))
    assert (device.name, device.platform, device.tpu_topology) == ("my-tpu", "tpu", "v9:1x1x1")
    assert device.topology() == {"platform": "tpu", "topology_name": "v9:1x1x1"}


def changed(old: str, new: str) -> str:
    assert CARD.count(old) == 1
    return CARD.replace(old, new)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed('kind = "Some Card"\n', ""), "card.toml: missing `kind`"),
        (changed("compute_capability = [8, 6]\n", ""), "card.toml: missing `compute_capability`"),
        (CARD.partition("[target]")[0], "card.toml: missing `target`"),
        (changed("core_count = 28\n", ""), "card.toml: target: missing `core_count`"),
        (changed("float32 = 12.7e12\n", ""), "missing `peak_flops.float32`"),
        (changed("memory_bytes = [12", "memory_byte = [12"), "unknown key `memory_byte`"),
        (changed("float32 = 12.7e12", 'float32 = "fast"'), "`peak_flops.float32` is the text 'fast'"),
        (changed("[8, 6]", "[8, 6, 1]"), "`compute_capability` has 3 entries; expected 2"),
        (changed("[8, 6]", "[86, 0]"), None),
        (changed("[8, 6]", "[860, 0]"), "`compute_capability` is (860, 0)"),
        (
            changed("[12_587_106_304", "[13_000_000_000"),
            "`memory_bytes` is 13000000000; expected at most nominal_bytes",
        ),
        (changed("[12_587_106_304", "[-1"), "`memory_bytes` is -1; expected bytes, from"),
        (changed("= 360e9", "= 400e9"), "bus width x rate per pin / 8 = 3.6e+11, within 1%"),
        (changed("float32 = 12.7e12", "float32 = 25.5e12"), "`peak_flops.float32` is 2.55e+13; expected"),
        (changed("[25.5e12", "[25.5e15"), "`peak_flops.bfloat16` is 2.55e+16; expected"),
        (changed("[25.5e12", "[-25.5e12"), "`peak_flops.bfloat16` is -2.55e+13; expected FLOP"),
        (changed("core_count = 28", "core_count = 0"), "`target.core_count` is 0; expected a number, from 1"),
        (changed("= 1.777", "= 1777"), "`target.clock_rate_ghz` is 1777; expected GHz, from 0.1 to 10"),
        ('topology = "v9:1"\n' + CARD, "`topology` does not go with platform = 'gpu'"),
        ('platform = "tpu"\n' + CARD, "missing `topology`"),
        ('sources = "me"\n' + CARD, "unknown key `sources`"),
        (TPU + TPU.replace("my-tpu", "other"), "card.toml holds 2 devices: my-tpu, other; expected one"),
        (TPU.replace("9e12", "9e15"), "[my-tpu]: `bandwidth_bytes_per_second` is 9e+15"),
        (TPU.replace("bfloat16 = 1e15", "bfloat16 = 1e18"), "`peak_flops.bfloat16` is 1e+18"),
        ("", "card.toml: missing `kind`, `memory_bytes`, `bandwidth_bytes_per_second`, `peak_flops`"),
        ("kind = ", "is not valid TOML"),
    ],
)
def test_what_is_missing_misspelt_or_impossible_is_refused_by_name(described, text, message):
    if message is None:
        assert find(described(text)).compute_capability == (86, 0)
        return
    with pytest.raises(SettingsError) as caught:
        find(described(text))
    assert message in caught.value.message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (changed("[12_587_106_304", "[12"), "`memory_bytes` is 12; expected bytes,", "12 GiB is 12_884_901_888"),
        (changed("[12_587_106_304", "[12_003"), "`memory_bytes` is 12003;", "12003 MiB is 12_586_057_728"),
        (changed("= 12_884_901_888", "= 12"), "`nominal_bytes` is 12; expected bytes,", "12 GiB is 12_884_901_888"),
        ("nominal_bytes = 12\n" + TPU.partition("]")[2], "`nominal_bytes` is 12;", "12 GiB is 12_884_901_888"),
        (
            TPU.replace("= 1_000_000_000_000", "= 1_000_000_000_000_000_000"),
            "`memory_bytes` is 1000000000000000000; expected bytes, from 1.074e+09 to 1.759e+13",
            "in bytes: 24 GiB is 25_769_803_776",
        ),
        (
            TPU.replace("= 9e12", "= 1008"),
            "`bandwidth_bytes_per_second` is 1008; expected bytes per second, from 1e+10 to 1e+14",
            "in bytes per second: 1008 GB/s is 1008e9",
        ),
        (TPU.replace("= 9e12", "= 1.2"), "`bandwidth_bytes_per_second` is 1.2;", "1.2 TB/s is 1.2e12"),
        (TPU.replace("bfloat16 = 1e15", "bfloat16 = 165"), "`peak_flops.bfloat16` is 165;", "165 TFLOP/s is 165e12"),
        (changed("[25.5e12", "[25.5"), "`peak_flops.bfloat16` is 25.5; expected FLOP per second", "is 25.5e12"),
        (changed("float32 = 12.7e12", "float32 = 12.7"), "`peak_flops.float32` is 12.7;", "12.7 TFLOP/s is 12.7e12"),
        (changed("float32 = 12.7e12", "float32 = 12_700"), "`peak_flops.float32` is 12700;", "GFLOP/s is 12700e9"),
        (changed("= 2_359_296", "= 72"), "`target.l2_cache_size` is 72; expected bytes,", "72 MiB is 75_497_472"),
        (changed("= 2_359_296", "= 2304"), "`target.l2_cache_size` is 2304;", "2304 KiB is 2_359_296"),
        (changed("= 102_400", "= 100"), "`target.shared_memory_per_core` is 100;", "100 KiB is 102_400"),
        (changed("= 101_376", "= 99"), "`target.shared_memory_per_block_optin` is 99;", "99 KiB is 101_376"),
        (changed("= 1.777", "= 1777"), "`target.clock_rate_ghz` is 1777;", "in GHz: 1777 MHz is 1.777"),
        (changed("= 1.777", "= 1.777e9"), "`target.clock_rate_ghz` is 1777000000;", "Hz is 1.777"),
        (changed("= 15e9", "= 15"), "`memory_bits_per_pin_per_second` is 15;", "15 Gbit/s is 15e9"),
        (
            "host_link_bytes_per_second = 31.5\n" + CARD,
            "`host_link_bytes_per_second` is 31.5; expected bytes per second, from 1e+08 to 1e+13",
            "in bytes per second: 31.5 GB/s is 31.5e9",
        ),
    ],
)
def test_a_number_in_other_units_is_refused_with_what_was_meant(described, text, message, hint):
    with pytest.raises(SettingsError) as caught:
        find(described(text))
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_what_a_hint_says_is_taken(described):
    meant = {"[12_587_106_304": "[12", "[25.5e12": "[25.5", "= 1.777": "= 1777", "= 102_400": "= 100"}
    for right, wrong in meant.items():
        with pytest.raises(SettingsError) as caught:
            find(described(changed(right, wrong)))
        value = caught.value.hint.rpartition(" is ")[2]
        assert find(described(changed(right, right[:-1].rstrip("0123456789_.e") + value))).name == "card"


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(SettingsError, match="no file at"):
        find(str(tmp_path / "none.toml"))
    with pytest.raises(SettingsError, match=r"no file at ~no-such-user/card\.toml"):
        find("~no-such-user/card.toml")
