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
        (changed("[12_587_106_304", "[-1"), "`memory_bytes` is -1; expected a number above 0"),
        (changed("= 360e9", "= 400e9"), "bus width x rate per pin / 8 = 3.6e+11, within 1%"),
        (changed("float32 = 12.7e12", "float32 = 25.5e12"), "`peak_flops.float32` is 2.55e+13; expected"),
        (changed("[25.5e12", "[25.5e15"), "`peak_flops.bfloat16` is 2.55e+16; expected"),
        (changed("[25.5e12", "[-25.5e12"), "`peak_flops.bfloat16` is -2.55e+13; expected above 0"),
        (changed("core_count = 28", "core_count = 0"), "`target.core_count` is 0; expected above 0"),
        (changed("= 1.777", "= 1777"), "`target.clock_rate_ghz` is 1777; expected above 0, and at most 10"),
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


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(SettingsError, match="no file at"):
        find(str(tmp_path / "none.toml"))
    with pytest.raises(SettingsError, match=r"no file at ~no-such-user/card\.toml"):
        find("~no-such-user/card.toml")
