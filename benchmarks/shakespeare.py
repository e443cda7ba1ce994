"""Does a whole run of brim learn what nanoGPT learns, and do memory techniques leave it alone?

WHAT IS COMPARED. `configs/shakespeare-cpu.toml` (nanoGPT's character-level Shakespeare with its CPU settings: 4 layers,
128 wide, context 64, batch 12, 2000 updates) is run through `brim train` with several seeds, and again with
rematerialization, with micro-batches of 3 rows x 4, with a chunked loss, and as brim plans it when it is left alone.
The table has the held-out loss after the last update against the 1.88 that nanoGPT publishes, wall time, and the
largest difference of the training loss from the plain run of the same seed: over the first 100 updates, where a fault
in a technique shows, and over all, where the float noise of another order of sums has been amplified by training.

WHAT MAY NOT BE CONCLUDED. Seeds do not give nanoGPT's parameters or batches, so the loss is to be compared with the
spread over seeds in mind. brim evaluates on the whole held-out tail, nanoGPT on random rows of it. The wall times are
of a tiny model: they say what a user waits for here, start-up, evaluations and checkpoints included, and nothing about
speed at a useful size.

    python benchmarks/shakespeare.py tinyshakespeare.txt
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import machine
from brim.planner import Plan
from brim.training.tracking import read_metrics

ROOT = Path(__file__).parent.parent
PUBLISHED_LOSS = 1.88
EARLY_UPDATES = 100
PLAIN, PLANNED = "plain", "as planned"
FIXED = {
    "train.micro_batch": "12",
    "techniques.precision.compute": "float32",
    "techniques.rematerialization.policy": "none",
    "techniques.chunked_loss.tokens": "0",
}
"""The plain step, written out so that nothing is left to the planner."""
VARIANTS: dict[str, dict[str, str]] = {
    PLAIN: FIXED,
    "rematerialization full": FIXED | {"techniques.rematerialization.policy": "full"},
    "micro-batch 3 x 4": FIXED | {"train.micro_batch": "3"},
    "loss in chunks of 64": FIXED | {"techniques.chunked_loss.tokens": "64"},
    PLANNED: {},
}


@dataclass(frozen=True)
class Run:
    """What one run left behind."""

    variant: str
    seed: int
    recipe: str
    losses: list[float]
    held_out_loss: float
    wall_seconds: float
    training_seconds: float


def main() -> None:
    options = parse()
    runs, before = [], machine.Clock.now()
    with tempfile.TemporaryDirectory() as scratch:
        for seed in options.seeds:
            for variant in options.variants:
                runs.append(train(options, variant, seed, Path(scratch)))
                print(f"{variant}, seed {seed}: held-out loss {runs[-1].held_out_loss:.4f}", file=sys.stderr)
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = in_markdown(runs, options.updates, before.foreign_share(own.ru_utime + own.ru_stime))
    print(text)
    machine.keep("shakespeare", [asdict(run) for run in runs], text, options.out)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="tinyshakespeare, or any text file")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report")
    return parser.parse_args()


def train(options: argparse.Namespace, variant: str, seed: int, scratch: Path) -> Run:
    """One run of `brim train`, in a folder of its own."""
    folder = scratch / f"{variant.replace(' ', '-')}-{seed}"
    settings = VARIANTS[variant] | {"train.seed": str(seed), "train.updates": str(options.updates)}
    settings |= {"data.paths": str(options.text.resolve()), "schedule.warmup": str(min(100, options.updates // 10))}
    command = [sys.executable, "-m", "brim", "train", str(ROOT / "configs/shakespeare-cpu.toml"), "--out", str(folder)]
    command += [word for key, value in settings.items() for word in (f"--{key}", value)]
    start = time.perf_counter()
    finished = subprocess.run(command, check=False, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if finished.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with {finished.returncode}:\n{finished.stderr}")
    records = read_metrics(folder / "metrics.jsonl")
    plan = Plan.from_json(json.loads((folder / "plan.json").read_text(encoding="utf-8")))
    held_out_loss = records[-1].held_out_loss
    assert held_out_loss is not None
    return Run(
        variant=variant,
        seed=seed,
        recipe=plan.recipe.describe(),
        losses=[record.loss for record in records],
        held_out_loss=held_out_loss,
        wall_seconds=seconds,
        training_seconds=records[-1].elapsed_seconds,
    )


def apart(run: Run, runs: Sequence[Run]) -> tuple[float, float] | None:
    """Largest difference of the loss from the plain run of the seed: over the first updates, and over all."""
    plain = next((other for other in runs if (other.variant, other.seed) == (PLAIN, run.seed)), None)
    if plain is None:
        return None
    differences = [abs(a - b) for a, b in zip(run.losses, plain.losses, strict=True)]
    return max(differences[:EARLY_UPDATES]), max(differences)


def in_markdown(runs: Sequence[Run], updates: int, foreign_share: float) -> str:
    """The report for people."""
    spread = [run.held_out_loss for run in runs if run.variant == runs[0].variant]
    lines = [f"# Shakespeare on a CPU, {datetime.now(UTC).date()}", ""]
    lines += [f"- processor: {machine.processor()}"]
    lines += [f"- versions: {', '.join(f'{k} {v}' for k, v in versions().items())}; brim {machine.commit()}"]
    lines += [f"- {updates} updates; nanoGPT publishes {PUBLISHED_LOSS} after 2000"]
    lines += [f"- {runs[0].variant}: held-out loss {statistics.mean(spread):.4f} [{min(spread):.4f}-{max(spread):.4f}]"]
    lines += [f"- other processes used {foreign_share:.1%} of the machine. {machine.warning(foreign_share)}", ""]
    head = ("run", "recipe", "seed", "held-out loss", "wall s", "training s", f"max diff, first {EARLY_UPDATES}", "all")
    return "\n".join(lines) + "\n" + machine.markdown_table(head, (shown(run, runs) for run in runs)) + "\n"


def shown(run: Run, runs: Sequence[Run]) -> tuple[object, ...]:
    """One line of the table."""
    found = apart(run, runs)
    differences = ("", "") if found is None or run.variant == PLAIN else tuple(f"{value:.1e}" for value in found)
    seconds = (f"{run.wall_seconds:.0f}", f"{run.training_seconds:.0f}")
    return (run.variant, run.recipe, run.seed, f"{run.held_out_loss:.4f}", *seconds, *differences)


def versions() -> dict[str, str]:
    """What the runs depended on."""
    return machine.versions("jax", "jaxlib", "optax", "grain")


if __name__ == "__main__":
    main()
