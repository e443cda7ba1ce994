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
        ("4070tisuper", "rtx-4070-ti-super"),
        ("GeForceRTX4070TiSuper", "rtx-4070-ti-super"),
        ("4060ti16gb", "rtx-4060-ti-16gb"),
        ("a100sxm480gb", "a100-80-sxm"),
        ("A100 SXM4 80G", "a100-80-sxm"),
        ("H200 141GB", "h200"),
        ("rtxpro6000", "rtx-pro-6000"),
        ("TPUv5e", "tpu-v5e"),
        ("Cloud TPU v6e", "tpu-v6e"),
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
        ("h100 80gb", "h100-sxm"),
        ("h100-80", "h100-sxm"),
        ("A100 80G", "a100-80-sxm"),
        ("a10080gb", "a100-80-sxm"),
        ("a100 SXM4", "a100-80-sxm"),
        ("v100 sxm2", "v100-16-sxm"),
        ("v100 PCI-E", "v100-16-pcie"),
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
        ("b200 192gb", "did you mean `b200`?"),
        ("4080 super", "did you mean `4080`?"),
        ("h100 nvl", "did you mean `h100`?"),
        ("rtx 4060 ti 8gb", "did you mean `rtx-4060-ti-16gb`?"),
        ("A10G", "did you mean `a10`?"),
        ("409", "did you mean `4090`?"),
        ("4900", "did you mean `4090`?"),
        ("trilium", "did you mean `trillium`?"),
        # The number or the letter of another card: no slip.
        *((other, "`brim devices` lists those that brim knows") for other in ("p100", "h800", "a40", "3070", "50 90")),
        (
            "cpu",
            "a CPU is planned for only where it is: leave the device out, and set JAX_PLATFORMS=cpu if a GPU is there",
        ),
        ("gpu", "leave the device out to plan for the GPU that is here"),
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


def spellings(name: str) -> set[str]:
    """Ways to write one device: with and without brand, socket, size and separators."""
    found = shipped()[name]
    size = found.nominal_bytes // 2**30
    bare = name.removeprefix("rtx-").removeprefix("tpu-")
    with_size = bare if f"{size}" in re.findall(r"\d+", bare) else f"{bare} {size}GB"
    brand = "Google Cloud TPU" if found.platform == "tpu" else "NVIDIA"
    return {
        *(name, bare, name.upper(), name.replace("-", "_"), bare.replace("-", " "), f"{brand} {name}", found.kind),
        *(
            with_size,
            with_size.replace("-", " ").replace("GB", " GiB"),
            with_size.replace("GB", "g"),
            found.kind.lower(),
        ),
        *(
            with_size.replace(" ", "-").upper(),
            found.kind.replace(" ", "").replace("-", ""),
            found.kind.replace(" ", "-"),
        ),
        *(re.sub(r"(?<!\d)-|-(?!\d)", "", name), re.sub(r"(?<!\d)-|-(?!\d)", "", with_size), f"{brand}{bare}"),
        *(word for other in found.aliases for word in (other, other.upper(), other.replace("-", ""))),
    }


@pytest.mark.parametrize("name", names())
def test_ten_plausible_spellings_of_each_device_mean_it(name):
    assert len(spellings(name)) >= 10
    for typed in spellings(name):
        assert named(typed).name == name, typed


def test_no_spelling_means_two_devices():
    meant: dict[str, str] = {}
    for name in names():
        for typed in spellings(name):
            assert meant.setdefault(typed.lower(), name) == name, typed


@pytest.mark.parametrize("name", names())
def test_a_family_name_with_the_size_of_its_device_means_that_device(name):
    size = shipped()[name].nominal_bytes // 2**30
    for family in shipped()[name].stands_for:
        for typed in (f"{family} {size}gb", f"{family}-{size}", f"{family} {size}G", f"{family.upper()} {size} GB"):
            assert named(typed).name == name, typed
        with pytest.raises(DeviceError):
            named(f"{family} 7gb")


OTHER_CARDS = """
RTX 4090 D; RTX 4090 Laptop GPU; 4090 48GB; RTX 4080 SUPER; 4080super; RTX 4070; RTX 4070 Ti; 4070ti; 4070s; RTX 4060;
RTX 4060 Ti 8GB; 4060ti8gb; RTX 3090 Ti; 3090ti; RTX 3080 Ti; RTX 3080 12GB; 308012gb; RTX 3060 Ti; RTX 3060 8GB; RTX
3060 Laptop GPU; RTX 2080; 2080s; RTX 2080 SUPER; RTX 2080 Ti 22GB; RTX 5090 D; RTX 5090 Laptop GPU; RTX 5070; RTX
5060; RTX 5080 Laptop GPU; A2; A10G; A10M; A16; A30; A40; A100X; A800; L2; L20; L40; L40G; T4G; H20; H100 NVL; H100
94GB; h10094gb; H100 PCIe 94GB; H200 NVL; H800; GH200; GB200; GB300; B100; B200 192GB; B300; V100S; V100S-PCIE-32GB;
P4; P40; P100; K80; M40; V100 24GB; A100 PCIe 64GB; A100 64GB; A100-SXM4-80GB MIG 3g.40gb; Quadro RTX 6000; RTX 5000
Ada; RTX A5000; RTX A6000 Ada; RTX 6000; RTX PRO 5000; RTX PRO 6000 Max-Q; RTX PRO 6000 Blackwell Server Edition; TPU
v2; TPU v3; TPU v4; TPU v4 lite; TPU v7x; TPU v5litepod 8; MI300X; RX 7900 XTX; Arc A770; 100; 80; 16gb; a; ti; super;
sxm; pcie; 10 80; a1 00; a1 080; 50 90; 4 090; t 44
"""


@pytest.mark.parametrize("typed", [word.strip() for word in " ".join(OTHER_CARDS.split()).split(";")])
def test_another_card_is_read_as_none_of_ours_and_the_hint_keeps_its_number(typed):
    with pytest.raises(DeviceError) as caught:
        named(typed)
    if found := re.fullmatch(r"did you mean `(.*)`\?", caught.value.hint):
        hinted = max(re.findall(r"\d+", found[1]), key=lambda number: number in typed)
        assert hinted in typed or any(hinted[:n] + hinted[n + 1 :] in typed for n in range(len(hinted)))
