"""A plan that was found before: printed without loading what searches and builds programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from brim.hardware.device import named
from brim.planner import Candidate, Memory, Plan
from brim.planner.cost import Cost
from brim.techniques import Accumulation, Recipe

RUN = Path(__file__).parents[2] / "configs" / "gpt2-124m.toml"
GIB = 2**30

# Each takes a tenth of a second and more to load, or loads one that does.
UNNEEDED = (
    *("optax", "grain", "orbax", "matplotlib", "tokenizers", "scipy"),
    *("brim.training.assemble", "brim.models.decoder", "brim.data.pipeline", "brim.supervisor.searching"),
    *("brim.planner.search", "brim.planner.compile", "brim.planner.workers", "brim.planner.calibration"),
)

PLANT = """
import json, sys
from brim.cli import main
from brim.planner import Plan
from brim.supervisor import searching
searching.search = lambda run, question, request: Plan.from_json(json.loads(open(sys.argv[1]).read()))
sys.exit(main(sys.argv[2:]))
"""
LOADED = """
import sys
from brim.cli import main
code = main(sys.argv[2:])
print([name for name in sys.argv[1].split() if name in sys.modules])
sys.exit(code)
"""


def run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, env=environment, check=True
    )


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The record of a plan, and an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    memory = Memory(9 * GIB, 0, 0, 0, {"parameters": 9 * GIB})
    chosen = Candidate(
        Recipe.of(8, Accumulation(64)), "chosen", "by this test", Cost({"products": 1.0}), 1024, 0, memory
    )
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(Plan(named("rtx-4090"), 20 * GIB, 512, (chosen,)).to_json()), encoding="utf-8")
    return path


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_kept_plan_is_read_without_what_made_it(found: Path, flags: tuple[str, ...]) -> None:
    words = ("plan", str(RUN), "--device", "rtx-4090", *flags)
    first = run(PLANT, str(found), *words)
    assert "finished before" not in first.stderr
    again = run(LOADED, " ".join(UNNEEDED), *words)
    assert "this search was finished before" in again.stderr
    *printed, loaded = again.stdout.splitlines()
    assert printed == first.stdout.splitlines()
    assert loaded == "[]"
