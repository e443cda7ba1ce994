"""Names as people type them."""

from __future__ import annotations

import re

import hypothesis.strategies as st
import pytest
from hypothesis import given

from brim.errors import DeviceError
from brim.hardware.entries import shipped
from brim.hardware.names import entry, find, named, names, reading_of

REQUIRED = {
    *(
        "rtx-2080-ti",
        "rtx-3060-12gb",
        "rtx-3080-10gb",
        "rtx-3090",
        "rtx-4060-ti-16gb",
        "rtx-4070-ti-super",
        "rtx-4080",
        "rtx-4090",
        "rtx-5070-ti",
        "rtx-5080",
        "rtx-5090",
    ),
    *("t4", "v100-16-sxm", "v100-32-sxm", "a10", "l4", "l40s"),
    *("rtx-a6000", "rtx-6000-ada", "rtx-pro-6000"),
    *("a100-40-sxm", "a100-40-pcie", "a100-80-sxm", "a100-80-pcie", "h100-sxm", "h100-pcie", "h200", "b200"),
    *("tpu-v5e", "tpu-v5p", "tpu-v6e"),
}


def test_all_that_were_promised_are_there():
    assert set(names()) >= REQUIRED


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("rtx_4090 24GB", "rtx-4090"),
        ("2080Ti", "rtx-2080-ti"),
        ("rtx 4070 ti super", "rtx-4070-ti-super"),
        ("3060 12GB", "rtx-3060-12gb"),
        ("A6000", "rtx-a6000"),
        ("RTX 6000 Ada", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("tesla t4", "t4"),
        ("V100 32GB PCIe", "v100-32-pcie"),
        ("A100 80GB PCIe", "a100-80-pcie"),
        ("A100-PCIE-40GB", "a100-40-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100-40-sxm"),
        ("h100 pcie", "h100-pcie"),
        ("H100 SXM5", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("H200", "h200"),
        ("v5e", "tpu-v5e"),
        ("TPU v6e", "tpu-v6e"),
        ("TPU v5 lite", "tpu-v5e"),
        ("TPU v5", "tpu-v5p"),
    ],
)
def test_spelling_is_forgiven_and_nothing_is_guessed(typed, name):
    assert named(typed).name == name
    assert entry(typed) is shipped()[name]
    assert find(typed) == named(name)
    assert reading_of(typed) is None


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("h100", "h100-sxm"),
        ("A100", "a100-80-sxm"),
        ("a100-80", "a100-80-sxm"),
        ("a100-40gb", "a100-40-sxm"),
        ("a100 pcie", "a100-80-pcie"),
        ("V100", "v100-16-sxm"),
        ("v100-32", "v100-32-sxm"),
        ("3080", "rtx-3080-10gb"),
        ("rtx-3060", "rtx-3060-12gb"),
        ("NVIDIA GeForce RTX 4060 Ti", "rtx-4060-ti-16gb"),
    ],
)
def test_a_family_name_means_its_commonest_device_and_says_so(typed, name):
    assert named(typed).name == name
    assert reading_of(typed).startswith(f"{typed} read as {name} ({named(name).kind}, ")


def test_the_reading_names_the_size():
    assert reading_of("h100") == "h100 read as h100-sxm (NVIDIA H100 80GB HBM3, 80 GB)"
    assert reading_of("3080") == "3080 read as rtx-3080-10gb (NVIDIA GeForce RTX 3080, 10 GB)"


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("rtx-4O90", "did you mean `rtx-4090`?"),
        ("4O90", "did you mean `4090`?"),
        ("h1000-pcie", "did you mean `h100-pcie`?"),
        ("4090 laptop", "`brim devices` lists those that brim knows"),  # another chip: nothing to suggest
        ("tpu-v5ee", "did you mean `tpu-v5e`?"),
        ("radeon", "`brim devices` lists those that brim knows"),
        ("", "`brim devices` lists those that brim knows"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(typed, hint):
    for ask in (named, entry, find, reading_of):
        with pytest.raises(DeviceError, match=f"no device called `{typed}`") as caught:
            ask(typed)
        assert caught.value.hint == hint


def test_no_name_means_two_devices():
    spelled: dict[str, str] = {}
    for name, found in shipped().items():
        for word in (name, *found.aliases, *found.stands_for):
            assert named(word).name == name
            assert spelled.setdefault(word, name) == name


@given(st.sampled_from(names()), st.data())
def test_case_separators_brands_and_order_never_matter(name, data):
    words = [*re.findall(r"[a-z]+|\d+", name), data.draw(st.sampled_from(["", "NVIDIA", "GeForce", "Tesla", "TPU"]))]
    typed = "".join(
        data.draw(st.sampled_from([word.lower(), word.upper(), word.title()]))
        + data.draw(st.sampled_from([" ", "-", "_", ".", "  "]))
        for word in data.draw(st.permutations(words))
    )
    assert named(typed).name == name
