"""Moments in 8 bits as a technique: which ones, how many bytes, what a plan says, and whether training goes on."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from brim.errors import CheckpointError, SettingsError
from brim.hardware.device import detect, named
from brim.models import DecoderSettings
from brim.models.decoder import decay_mask, decoder_program
from brim.ops import Loss
from brim.planner.bounds import Bounds
from brim.planner.memory import OPTIMIZER, Memory
from brim.planner.question import Question
from brim.planner.space import recipes
from brim.program import Program
from brim.techniques import AttentionKernel, LowbitStates, Precision, Recipe, Technique, techniques_from
from brim.techniques.base import Context
from brim.techniques.moments import Moment, is_moment
from brim.training.assemble import assemble
from brim.training.checkpoint import Checkpoints
from brim.training.optimizers import optimizer
from brim.training.settings import OptimizerSettings
from brim.training.step import Step
from brim.tree import tree_bytes

LOW = LowbitStates(bits=8)
ROWS, LENGTH = 4, 32


def small_program(**shape: Any) -> Program:
    settings = {"layers": 3, "width": 64, "heads": 4, "context": LENGTH, "vocabulary": 128} | shape
    transformation = optimizer(OptimizerSettings(weight_decay=0.01), lambda count: 3e-3, decay_mask)
    return decoder_program(DecoderSettings(**settings).resolved(), transformation, 1.0, packed=False)


@cache
def step_of(*techniques: Technique) -> Step:
    quickly = {"xla_backend_optimization_level": "0"}
    recipe = Recipe.of(ROWS, AttentionKernel("reference"), *techniques, compiler_options=quickly)
    return Step(small_program(), recipe, detect())


def batch(number: int) -> dict[str, np.ndarray]:
    """Rows that count up by a step of their own: what comes next can be learnt."""
    random = np.random.default_rng(number)
    starts, steps = random.integers(0, 128, (ROWS, 1)), random.integers(1, 4, (ROWS, 1))
    tokens = ((starts + steps * np.arange(LENGTH + 1)) % 128).astype(np.int32)
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}


def program_of(shapes: dict[str, tuple[int, ...]], stacked: Any = None) -> Program:
    """A program with parameters of some shapes and AdamW; it is never run."""

    def init(key: Any) -> Any:
        del key
        return {name: jnp.zeros(shape) for name, shape in shapes.items()}, (), ()

    def loss(trainable: Any, *others: Any) -> Any:
        del others
        return Loss(sum(leaf.sum() for leaf in jax.tree.leaves(trainable)), jnp.float32(1)), ()

    row = {"x": jax.ShapeDtypeStruct((), jnp.float32)}
    program = Program(init, loss, optax.adamw(1e-3), row)
    return program if stacked is None else replace(program, stacked=stacked)


def moments_of(program: Program, technique: LowbitStates = LOW) -> Any:
    state = assemble(program, Recipe.of(1, technique), detect(), say=lambda note: None).state.optimizer[0]
    return {name: tree_bytes((state.mu[name], state.nu[name])) for name in state.mu}, state


def test_eb_s1_embeddings_and_small_tensors_stay_fp32_and_bytes_are_exact() -> None:
    found, state = moments_of(program_of({"token_embedding": (8192, 64), "matrix": (512, 512), "bias": (512,)}))
    assert found == {"token_embedding": 4_194_304, "matrix": 524_288 + 2 * 4_096, "bias": 4_096}
    assert state.mu["matrix"].codes.dtype == jnp.uint8 and state.mu["matrix"].scales.dtype == jnp.float32
    assert state.mu["token_embedding"].dtype == jnp.float32


def test_eb_s1_the_plan_is_told_which_moments_are_in_8_bits() -> None:
    program, notes = small_program(), []
    LOW.apply(Recipe.of(1).points(Context(program, detect())), Context(program, detect(), notes.append))
    low, kept = notes[0].split("; in 32 bits: ")
    assert low.startswith("moments in 8 bits: layers.attention.query.weight, ")
    assert kept.startswith("token_embedding.weight, position_embedding.weight, layers.attention_norm.scale")


def test_eb_s2_one_rule_on_the_logical_parameter() -> None:
    sizes = {4095: False, 4096: True, 5000: True, 6144: True}
    for size, is_low in sizes.items():
        _, state = moments_of(program_of({"w": (size,)}))
        assert is_moment(state.mu["w"]) is is_low
    apart = program_of({f"{number}.norm": (1024,) for number in range(6)})
    together = program_of({"norm": (6, 1024)}, stacked=lambda name: True)
    assert not any(map(is_moment, jax.tree.leaves(moments_of(apart)[1], is_leaf=is_moment)))
    assert not any(map(is_moment, jax.tree.leaves(moments_of(together)[1], is_leaf=is_moment)))
    assert is_moment(moments_of(together, LowbitStates(bits=8, smallest=1024))[1].mu["norm"])


def test_what_a_bound_and_the_owners_count_is_exact() -> None:
    program = small_program()
    plain, low = (Recipe.of(ROWS, AttentionKernel("reference"), *each) for each in ((), (LOW,)))
    bounds = Bounds(program, detect())
    in_layers = 3 * (4 * 64 * 64 + 2 * 64 * 256)
    saved = 8 * in_layers - 2 * (in_layers + 4 * in_layers // 256)
    assert bounds.of(plain).arguments - bounds.of(low).arguments == saved
    step = step_of(LOW)
    memory = Memory.of(step.compiled, step.assembly, accumulating=False)
    assert memory.owners[OPTIMIZER] == tree_bytes(step.assembly.state.optimizer)
    assert bounds.of(low).least <= memory.peak_bytes


def test_the_planner_searches_it_only_where_lossy_is_allowed() -> None:
    program, device = small_program(), named("h100")
    for allow, wanted in ((False, {32}), (True, {8, 32})):
        question = Question(device, 2**30, 2, allow_lossy=allow)
        assert {recipe["lowbit_states"].bits for recipe in recipes(program, question)} == wanted  # type: ignore[attr-defined]
    assert LOW.effect == "lossy" and LowbitStates().effect == "exact"


def test_settings() -> None:
    tables = {"lowbit_states": {"bits": 8, "block": 256, "smallest": 4096}}
    assert techniques_from(tables) == (LOW,)
    assert (LOW.describe(), LowbitStates(bits=8, block=64).describe()) == (
        "8-bit moments",
        "8-bit moments in blocks of 64",
    )
    for wrong in ({"bits": 4}, {"block": 0}, {"smallest": 0}):
        with pytest.raises(SettingsError):
            techniques_from({"lowbit_states": wrong})


def test_eb_s4_codes_and_scales_survive_a_checkpoint_and_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    step = step_of(LOW, Precision("bfloat16"))
    state = step.init(jax.random.key(0))
    for number in range(10):
        state, _ = step(state, batch(number))
    checkpoints = Checkpoints(tmp_path, keep_last=1, keep_best=0)
    try:
        checkpoints.save(10, state, {}, wait=True)
        restored, _ = checkpoints.restore(10, like=step.assembly.state)
        moments = [leaf for leaf in jax.tree.leaves(restored.optimizer, is_leaf=is_moment) if isinstance(leaf, Moment)]
        assert len(moments) == 12
        assert {(str(m.codes.dtype), str(m.scales.dtype), m.block) for m in moments} == {("uint8", "float32", 256)}
        jax.tree.map(np.testing.assert_array_equal, restored.optimizer, state.optimizer)
        (one, _), (other, _) = step(state, batch(10)), step(restored, batch(10))
        jax.tree.map(np.testing.assert_array_equal, one.trainable, other.trainable)
        with pytest.raises(CheckpointError, match="different: optimizer"):
            checkpoints.restore(10, like=assembled_state(LowbitStates(bits=8, block=128)))
        with pytest.raises(CheckpointError, match="another model or optimizer"):
            checkpoints.restore(10, like=assembled_state(LowbitStates()))
    finally:
        checkpoints.close()


def assembled_state(technique: LowbitStates) -> Any:
    recipe = Recipe.of(ROWS, AttentionKernel("reference"), technique)
    return assemble(small_program(), recipe, detect(), say=lambda note: None).state


@pytest.mark.slow
def test_learning_equals_fp32_within_the_spread_of_seeds() -> None:
    losses = {technique: [final_loss(technique, seed) for seed in range(3)] for technique in (LowbitStates(), LOW)}
    plain, low = (np.asarray(losses[technique]) for technique in (LowbitStates(), LOW))
    assert not np.array_equal(plain, low), "8 bits changed nothing: nothing was tested"
    assert plain.mean() < 1.5, "nothing was learnt"
    assert abs(low.mean() - plain.mean()) < plain.max() - plain.min()


def final_loss(technique: LowbitStates, seed: int, updates: int = 100) -> float:
    """Mean loss of the last windows of a run."""
    step = step_of(technique)
    state, losses = step.init(jax.random.key(seed)), []
    for number in range(updates):
        state, metrics = step(state, batch(1000 * seed + number))
        losses.append(metrics.loss)
    return float(np.mean(losses[-20:]))
