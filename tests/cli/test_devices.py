"""`brim devices`, as a person and as a program reads it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from brim import cli
from brim.cli import devices
from brim.hardware import nvidia
from brim.hardware.names import named, names

KEYS = """
    name kind platform architecture compute_capability cores clock_ghz l2_bytes nominal_bytes memory_bytes usable_bytes
    bandwidth_bytes_per_second host_link host_link_bytes_per_second peak_flops can why_not topology aliases notes
    sources
"""


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(nvidia, "query", nvidia.Answer)


@pytest.fixture
def brim(capsys):
    """Runs the command; exit code, what went to stdout, what went to stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        code = cli.main(["devices", *words])
        return code, *capsys.readouterr()

    return run


def test_the_list_has_a_line_for_each_device_in_columns(brim):
    code, out, err = brim()
    lines = out.splitlines()
    assert (code, err) == (0, "")
    header, rows = lines[0], lines[1 : 1 + len(names())]
    assert " ".join(header.split()) == "device architecture SMs memory usable GB/s link bf16 fp16 fp8 TF32 fp32"
    assert [row.split()[0] for row in rows] == list(names())
    assert len({len(line) for line in [header, *rows]}) == 1
    (row,) = (row for row in rows if row.startswith("rtx-4090 "))
    assert " ".join(row.split()[1:]) == "Ada AD102 128 23.5 22.3 1008 32 165.2 165.2 330.3 82.6 82.6"
    assert lines[-1].startswith("bf16 to fp32: TFLOP/s")
    assert "\x1b" not in out


def test_the_device_that_is_here_is_marked(brim, monkeypatch):
    gpu = nvidia.Gpu("GPU-1", "Tesla T4", "580", (7, 5), 14918 * 2**20, 14000 * 2**20)
    monkeypatch.setattr(nvidia, "query", lambda: nvidia.Answer((gpu,)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    _, out, _ = brim()
    assert [line.split()[0] for line in out.splitlines() if "*" in line.split()[0]] == ["t4*", "*:"]
    assert out.splitlines()[-1] == "*: the device that is here, Tesla T4"
    assert json.loads(brim("--json")[1])["here"] == "t4"


def test_one_device_shows_sources_and_what_it_can_and_cannot_run(brim):
    code, out, err = brim("2080ti")
    assert (code, err) == (0, "")
    assert out.startswith("rtx-2080-ti: NVIDIA GeForce RTX 2080 Ti\n")
    shown = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert shown["memory_bytes"][:4] == ["11348672512", "(10.57", "GiB)", "query:"]
    assert shown["peak_flops.float16"] == ["5.379e+13", "derived:", "68", "x", "1.545", "GHz", "x", "512"]
    assert shown["target.core_count"] == ["68", "query"]
    assert "usable memory: 9.57 GiB, which is 10.57 GiB less 512.0 MiB for the CUDA context and 512.0 MiB" in out
    assert "can     float16\n" in out
    assert "cannot  bfloat16         bfloat16 needs compute capability 8.0; NVIDIA GeForce RTX 2080 Ti has 7.5\n" in out
    assert "guide: CUDA C++ Programming Guide" in out
    assert "specs: openxla" not in out  # no number of this card is from there


@pytest.mark.parametrize("name", names())
def test_every_device_has_a_page(brim, name):
    code, out, err = brim(name)
    assert (code, err) == (0, "")
    assert out.startswith(f"{name}: {named(name).kind}\n")
    assert "None" not in out


def test_a_family_name_is_said_on_stderr(brim):
    _, out, err = brim("h100")
    assert out.startswith("h100-sxm: ")
    assert err == "device: h100 read as h100-sxm (NVIDIA H100 80GB HBM3, 80 GB)\n"


def test_json_is_a_contract(brim):
    code, out, err = brim("--json")
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert set(report) == {"brim", "here", "reading", "devices"}
    assert [device["name"] for device in report["devices"]] == list(names())
    for device in report["devices"]:
        assert list(device) == KEYS.split()
        assert device["usable_bytes"] == named(device["name"]).usable_bytes
        assert set(device["why_not"]) == {feature for feature, can in device["can"].items() if not can}


def test_json_of_one_device_is_a_list_of_one(brim):
    report = json.loads(brim("a100", "--json")[1])
    assert report["reading"] == "a100 read as a100-80-sxm (NVIDIA A100-SXM4-80GB, 80 GB)"
    (device,) = report["devices"]
    assert device["peak_flops"]["bfloat16"] == 312e12
    assert device["peak_flops"]["float8"] is None
    assert device["sources"]["memory_bytes"] == "specs: a100_sxm_80"
    (tpu,) = json.loads(brim("v5e", "--json")[1])["devices"]
    assert (tpu["topology"], tpu["cores"], tpu["compute_capability"]) == ("v5e:1x1x1", None, None)


def test_a_file_of_ones_own_is_shown_and_a_wrong_one_refused(brim, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'kind = "Mine"\nplatform = "tpu"\ntopology = "v9:1"\nmemory_bytes = 8_000_000_000\n'
        "bandwidth_bytes_per_second = 1e11\npeak_flops = { float32 = 1e13 }\n",
        encoding="utf-8",
    )
    assert brim(str(path))[1].startswith("mine: Mine\n")
    path.write_text('kind = "Mine"\n', encoding="utf-8")
    code, out, err = brim(str(path))
    assert (code, out) == (2, "")
    assert err.startswith("brim: mine.toml: missing `memory_bytes`, `bandwidth_bytes_per_second`, `peak_flops`")


def test_an_unknown_name_and_a_wrong_flag(brim):
    code, out, err = brim("rtx-4O90")
    assert (code, out) == (1, "")
    assert err == "brim: no device called `rtx-4O90`\n\nhint: did you mean `rtx-4090`?\n"
    with pytest.raises(SystemExit) as stopped:
        brim("--jsno")
    assert stopped.value.code == 2


def in_a_terminal(columns: int) -> list[str]:
    """What the command prints on a terminal of some width."""
    ours, theirs = pty.openpty()
    variables = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color", "PATH": ""}
    command = [sys.executable, "-m", "brim", "devices"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, env=variables) as process:
        os.close(theirs)
        output = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not part:
                break
            output += part
        process.wait(timeout=60)
    os.close(ours)
    return output.decode().splitlines()


@pytest.mark.parametrize(("columns", "architecture"), [(120, True), (80, False)])
def test_a_terminal_gets_a_table_that_fits_it(columns, architecture):
    lines = in_a_terminal(columns)
    text = "\n".join(lines)
    assert "\x1b[" in text
    assert ("architecture" in text) == architecture
    assert "…" not in text
    assert all(name in text for name in names())


def test_the_record_holds_what_the_planner_uses():
    record = devices.record("rtx-4090", devices.shipped()["rtx-4090"])
    device = named("rtx-4090")
    for key in ("kind", "memory_bytes", "usable_bytes", "bandwidth_bytes_per_second", "host_link_bytes_per_second"):
        assert record[key] == getattr(device, key)
