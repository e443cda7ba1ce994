"""Every byte of a small step has the right owner: against specs, JAX's residuals, XLA's totals, and planted faults."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax._src.ad_checkpoint import saved_residuals

from brim.compiled import MemoryReport, Roles, audit_compile, memory_report
from brim.errors import DeviceError
from compiled.small import BATCH, LAYERS, PARAMETERS, POLICIES, QUICK, ROLES, audited, loss, params_of

EACH_POLICY = pytest.mark.parametrize("policy", POLICIES)


def report_of(policy: str = "none", **settings: Any) -> MemoryReport:
    return audited(policy, **settings).memory_report(ROLES)


def stacked_residual_bytes(policy: str) -> int:
    """What JAX says the layers save, before XLA has seen the program."""

    def total(params: Any, batch: Any) -> Any:
        return loss(params, batch, policy, 1, jnp.float32, jnp.float32)

    found = [kind for kind, why in saved_residuals(total, params_of(), BATCH) if "argument" not in why]
    return sum(kind.size * kind.dtype.itemsize for kind in found if kind.shape[:1] == (LAYERS,))


@EACH_POLICY
def test_the_books_balance_to_the_byte(policy: str) -> None:
    report = report_of(policy)
    analysis = audited(policy).compiled.memory_analysis()
    total = analysis.argument_size_in_bytes + analysis.output_size_in_bytes
    total += analysis.temp_size_in_bytes - analysis.alias_size_in_bytes
    assert report.peak_bytes == total == sum(row.bytes for row in report.rows) == sum(report.owners.values())
    assert report.peak.bytes == max(report.timeline.live_bytes()) <= total
    assert sum(report.how.values()) == total
    assert report.unexplained_share < 0.02


@EACH_POLICY
def test_owners_of_arguments_are_exact(policy: str) -> None:
    owners = report_of(policy).owners
    assert owners["parameters"] == owners["optimizer mu"] == owners["optimizer nu"] == 4 * PARAMETERS
    assert owners["batch"] == sum(leaf.size * 4 for leaf in jax.tree.leaves(BATCH))
    assert owners["counters and keys"] == 4  # one int32 count


@EACH_POLICY
def test_saved_residuals_are_those_that_jax_says(policy: str) -> None:
    # The loss in pieces, so that the peak lies in the layers.
    rows = [row for row in report_of(policy, chunks=8).rows if row.owner.kind == "saved residuals"]
    assert {row.owner.phase for row in rows} == {"forward"}
    # 1%: the gather of the embedding keeps its indices too.
    assert sum(row.bytes for row in rows) == pytest.approx(stacked_residual_bytes(policy), rel=0.01)


def test_residuals_differ_between_the_policies() -> None:
    none, dots, full = map(stacked_residual_bytes, POLICIES)
    assert none > 1.3 * dots > 1.3 * 4 * full


def test_residuals_are_named_by_scope() -> None:
    rows = [row.owner for row in report_of("none").rows if row.owner.kind == "saved residuals"]
    assert {"attention/exp", "feed_forward/tanh"} <= {owner.path for owner in rows}
    assert all(owner.how == "direct" for owner in rows)
    assert any(owner.source.startswith("small.py:") and owner.source.endswith("block") for owner in rows)


def test_gradients_are_one_array_for_each_parameter() -> None:
    report = report_of("full", chunks=8)
    # Beside them, at most those of the layer that is being added.
    assert 4 * PARAMETERS <= max(report.timeline.temporaries["gradients"]) < 4 * PARAMETERS * (1 + 1 / LAYERS)


# ---- planted faults: each is the top of the report, and is not when the fault is gone


def top(report: MemoryReport) -> str:
    return next(iter(report.owners))


SOUND = {"policy": "full", "chunks": 8}


def test_the_sound_step_has_none_of_the_faults_on_top() -> None:
    report = report_of(**SOUND)
    assert top(report) not in ("saved residuals", "logits and loss", "outputs, not aliased")
    assert report.owners["outputs, not aliased"] < 512


def test_a_lost_checkpoint_is_on_top() -> None:
    report = report_of("none", chunks=8)
    assert top(report) == "saved residuals"
    assert report.owners["saved residuals"] > 4 * report_of(**SOUND).owners["saved residuals"]


def test_an_unchunked_loss_is_on_top_and_the_peak_lies_in_it() -> None:
    report = report_of("full")
    assert top(report) == "logits and loss"
    assert report.peak.path.startswith("loss/")


def test_a_lost_donation_is_on_top() -> None:
    report = report_of(**SOUND, donate=False)
    assert top(report) == "outputs, not aliased"
    assert report.owners["outputs, not aliased"] >= 3 * 4 * PARAMETERS


def test_what_if_the_logits_were_gone_is_a_lower_bound_of_chunking_them() -> None:
    predicted = report_of("none").without["logits and loss"]
    chunked = report_of("none", chunks=8).peak_bytes
    assert 0.9 * chunked < predicted <= chunked < report_of("none").peak_bytes


# ---- programs that are not like brim's


def test_without_scopes_the_source_line_is_the_owner() -> None:
    def layer(x: Any, weight: Any) -> Any:
        return jnp.tanh(x @ weight)

    def step(params: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            x = batch
            for weight in params:
                x = layer(x, weight)
            return (x**2).sum()

        return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params))

    weights = [jax.ShapeDtypeStruct((40, 40), jnp.float32)] * 4
    lowered = jax.jit(step, donate_argnums=0).lower(weights, jax.ShapeDtypeStruct((300, 40), jnp.float32))
    report = audit_compile(lowered, QUICK).memory_report(Roles(parameters="params"))
    saved = [row.owner for row in report.rows if row.owner.kind == "saved residuals"]
    assert saved
    assert {(owner.path.split(":")[0], owner.path.split()[-1]) for owner in saved} == {("test_ledger.py", "layer")}
    assert report.unexplained_share == 0


def test_optimizer_states_have_the_names_that_optax_gives() -> None:
    optimizer = optax.sgd(0.1, momentum=0.9)

    def step(params: Any, opt_state: Any, batch: Any) -> Any:
        gradient = jax.grad(lambda w: ((batch @ w) ** 2).sum())(params)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    weight = jax.ShapeDtypeStruct((64, 32), jnp.float32)
    arguments = weight, jax.eval_shape(optimizer.init, weight), jax.ShapeDtypeStruct((8, 64), jnp.float32)
    report = audit_compile(jax.jit(step, donate_argnums=(0, 1)).lower(*arguments), QUICK).memory_report(ROLES)
    assert report.owners["optimizer trace"] == report.owners["parameters"] == 4 * 64 * 32


# ---- the report as data


def test_a_report_survives_a_file() -> None:
    report = report_of("dots")
    assert MemoryReport.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_the_timeline_adds_up_at_each_instant() -> None:
    report = report_of("none")
    timeline = report.timeline
    at_peak = timeline.instants.index(report.peak.instant)
    owners = report.owners
    for kind, sizes in timeline.temporaries.items():
        assert timeline.resident.get(kind, 0) + sizes[at_peak] == owners.get(kind, 0)
    assert report.without.keys() == set(timeline.kinds)
    assert timeline.phases[0] == "forward"
    assert timeline.phases[-1] == "update"


def test_books_that_do_not_balance_are_an_error() -> None:
    audit = audited("full")
    analysis = audit.compiled.memory_analysis()
    names = [f"{part}_size_in_bytes" for part in ("argument", "output", "alias", "temp")]
    wrong = SimpleNamespace(**{name: getattr(analysis, name) for name in names})
    wrong.temp_size_in_bytes += 1
    with pytest.raises(DeviceError, match="adds up to"):
        memory_report(audit.module, audit.memory, wrong)
