"""Phases, scopes and roles, by names that JAX really gave."""

from __future__ import annotations

import pytest

from brim.compiled.names import is_named, path_of, phase_of, scopes_of
from brim.compiled.roles import Roles

FORWARD = "jit(_window)/jvp()/while/body/closed_call/feed_forward/mlp_hidden/dot_general"
BACKWARD = "jit(_window)/transpose(jvp(loss))/jit(take_along_axis)/scatter-add"
AGAIN = "jit(_window)/transpose(jvp())/while/body/closed_call/attention/attention/checkpoint/rematted_computation/sub"
TWICE = "jit(_window)/transpose(jvp())/while/body/closed_call/attention/norm/attention/norm/checkpoint/add_any"
FLAX = "jit(step)/jvp(Model)/h_0/attn/c_attn/dot_general"


@pytest.mark.parametrize(
    ("name", "phase", "path"),
    [
        (FORWARD, "forward", "feed_forward/mlp_hidden/dot_general"),
        (BACKWARD, "backward", "loss/scatter-add"),
        (AGAIN, "recompute", "attention/sub"),
        (TWICE, "backward", "attention/norm/add_any"),
        (FLAX, "forward", "Model/h_0/attn/c_attn/dot_general"),
        ("jit(_window)/optimizer/mul", None, "optimizer/mul"),
        ("reduce_sum", None, "reduce_sum"),
    ],
)
def test_phase_and_path(name: str, phase: str | None, path: str) -> None:
    assert phase_of(name) == phase
    assert path_of(name) == path
    assert scopes_of(name) == tuple(path.split("/")[:-1])


def test_names_that_xla_made_are_told_from_those_of_jax() -> None:
    assert is_named(FORWARD)
    assert not is_named("reduce_sum")
    assert not is_named("")


def test_arguments_of_a_step_of_brim() -> None:
    sizes = {
        "state.trainable.layers.up": (4, 8, 32),
        "state.trainable.bias": (8,),
        "state.optimizer[0].count": (),
        "state.optimizer[0].mu.layers.up": (4, 8, 32),
        "state.optimizer[0].nu.bias": (8,),
        "state.optimizer[1].inner_states['decay'].trace.bias": (8,),
        "state.optimizer[2].codes": (64,),
        "state.variables['mean']": (8,),
        "state.frozen.table": (8,),
        "state.key": (2,),
        "batch['tokens']": (2, 16),
        "batches": (2, 16),
    }
    assert list(Roles().kinds(sizes).values()) == [
        "parameters",
        "parameters",
        "counters and keys",
        "optimizer mu",
        "optimizer nu",
        "optimizer trace",
        "optimizer codes",
        "variables",
        "frozen parameters",
        "counters and keys",
        "batch",
        "other arguments",
    ]


def test_a_moment_that_is_kept_in_several_arrays_goes_by_its_own_name() -> None:
    sizes = {
        "state.trainable.layers.up": (4, 8, 32),
        "state.trainable.up": (8,),
        "state.optimizer[0].mu.layers.up.codes": (4, 8, 32),
        "state.optimizer[0].nu.layers.up.scales": (4, 1),
        "state.optimizer[0].nu.up.codes": (8,),
    }
    assert list(Roles().kinds(sizes).values())[2:] == ["optimizer mu", "optimizer nu", "optimizer nu"]


def test_parameters_in_one_array() -> None:
    roles = Roles(parameters="w", optimizer="opt_state")
    sizes = {"w": (8,), "opt_state[0].mu": (8,), "opt_state[0].count": ()}
    assert list(roles.kinds(sizes).values()) == ["parameters", "optimizer mu", "counters and keys"]
