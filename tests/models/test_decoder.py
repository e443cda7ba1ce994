from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from brim.errors import ShapeError
from brim.models import DecoderShape, parameter_count
from brim.models.decoder import RESIDUAL_NAMES, Block, Context, Decoder, decay_mask, decoder_loss, decoder_program
from brim.ops import AttentionMask, Dtypes, Ops, reference_attention, row_keys, scan_stack
from brim.tree import path_names, tree_size

Batch = dict[str, jax.Array]
MakeModel = Callable[[DecoderShape], Decoder]
MakeShape = Callable[..., DecoderShape]
PLAIN = Ops()


@functools.partial(jax.jit, static_argnames="ops")
def total_and_gradient(model: Decoder, batch: Batch, keys: Any = None, ops: Ops = PLAIN) -> tuple[Any, Decoder]:
    """Loss sum and gradients."""
    return jax.value_and_grad(lambda model: decoder_loss(model, (), (), batch, keys, ops)[0].total)(model)


@functools.partial(jax.jit, static_argnames="ops")
def logits_of(model: Decoder, batch: Batch, ops: Ops = PLAIN) -> jax.Array:
    """Logits, without dropout."""
    return model.logits(batch, ops)


def assert_close(first: Any, second: Any, tolerance: float) -> None:
    """Every leaf alike within a tolerance relative to its largest number."""
    for name, a, b in zip(path_names(first), jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance * (1 + np.abs(a).max()), err_msg=name)


def rows(batch: Batch, part: slice) -> Batch:
    return {name: array[part] for name, array in batch.items()}


def row(tokens: list[int], documents: list[int] | None = None, positions: list[int] | None = None) -> Batch:
    batch = {"tokens": tokens, "targets": tokens}
    batch |= {} if documents is None else {"documents": documents}
    batch |= {} if positions is None else {"positions": positions}
    return {name: jnp.asarray([value], jnp.int32) for name, value in batch.items()}


def test_every_parameter_gets_a_finite_fp32_gradient_from_bf16_compute(
    shape: DecoderShape, make_model: MakeModel, packed_batch: Batch
) -> None:
    model = make_model(shape)
    _, gradient = total_and_gradient(model, packed_batch, ops=Ops(Dtypes(compute=jnp.bfloat16)))
    for name, leaf in zip(path_names(gradient), jax.tree.leaves(gradient), strict=True):
        assert leaf.dtype == jnp.float32, name
        assert np.all(np.isfinite(leaf)), name
        # A key's bias moves all scores of a query alike, which softmax does not notice.
        assert np.abs(leaf).max() > 1e-3 or name == "layers.attention.key.bias", name


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_logits_do_not_depend_on_later_tokens(family: str, make_shape: MakeShape, make_model: MakeModel) -> None:
    model = make_model(make_shape(family=family, tied=False))
    batch = row(list(range(12)))

    gradient_of = jax.jit(jax.grad(lambda model, at: logits_of(model, batch)[0, at].sum()))
    for at in (0, 5, 11):
        reached = np.abs(gradient_of(model, at).token_embedding.weight).max(axis=1) > 0
        assert reached.tolist() == [token <= at for token in range(32)]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_at_s2_packed_documents_do_not_see_each_other(
    family: str, make_shape: MakeShape, make_model: MakeModel
) -> None:
    model = make_model(make_shape(family=family, tied=False))
    documents, positions = [1, 1, 1, 2, 2, 2, 2], [0, 1, 2, 0, 1, 2, 3]
    batch = row([5, 6, 7, 8, 9, 10, 11], documents, positions)
    changed = row([21, 22, 23, 8, 9, 10, 11], documents, positions)
    logits, changed_logits, alone = (logits_of(model, each)[0] for each in (batch, changed, row([8, 9, 10, 11])))
    assert np.abs(logits[:3] - changed_logits[:3]).max() > 0.1
    assert np.array_equal(logits[3:], changed_logits[3:])
    np.testing.assert_allclose(logits[3:], alone, atol=1e-5)

    batch["targets"] = jnp.asarray([[-100, -100, -100, 9, 10, 11, -100]], jnp.int32)
    _, gradient = total_and_gradient(model, batch)
    touched = np.abs(gradient.token_embedding.weight).max(axis=1) > 0
    assert np.flatnonzero(touched).tolist() == [8, 9, 10]


def test_at_s3_head_width_12_keeps_its_own_scale(make_shape: MakeShape, make_model: MakeModel) -> None:
    shape = make_shape(width=48)
    assert shape.head_width == 12
    seen = []

    def by_hand(query: jax.Array, key: jax.Array, value: jax.Array, mask: AttentionMask, **_: Any) -> jax.Array:
        seen.append(query.shape)
        scores = jnp.einsum("bthd,bshd->bhts", query, key) * 0.288675
        scores = jnp.where(jnp.tri(query.shape[1], dtype=bool)[None, None], scores, -jnp.inf)
        return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), value)

    model, batch = make_model(shape), row(list(range(12)))
    logits, expected = (logits_of(model, batch, Ops(attention=f)) for f in (reference_attention, by_hand))
    assert seen == [(1, 12, 4, 12)]
    np.testing.assert_allclose(logits, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_rows_without_documents_and_positions_are_one_document(
    family: str, make_shape: MakeShape, make_model: MakeModel, packed_batch: Batch
) -> None:
    model, whole = make_model(make_shape(family=family)), rows(packed_batch, slice(2, 3))
    bare = {name: whole[name] for name in ("tokens", "targets")}
    assert whole["documents"].tolist() == [[1] * 12]
    np.testing.assert_allclose(logits_of(model, whole), logits_of(model, bare), atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_padding_changes_nothing(
    family: str, make_shape: MakeShape, make_model: MakeModel, packed_batch: Batch
) -> None:
    other = packed_batch | {"tokens": jnp.where(packed_batch["documents"] > 0, packed_batch["tokens"], 3)}
    assert not np.array_equal(packed_batch["tokens"], other["tokens"])
    model = make_model(make_shape(family=family, tied=False))
    first, second = total_and_gradient(model, packed_batch), total_and_gradient(model, other)
    assert np.array_equal(first[0], second[0])
    assert_close(first[1], second[1], 1e-6)


def test_rows_longer_than_the_context_are_refused(make_shape: MakeShape, make_model: MakeModel) -> None:
    with pytest.raises(ShapeError, match="a row has 13 positions; the model's context is 12"):
        make_model(make_shape()).logits(row(list(range(13))), Ops())


def test_gradient_of_a_tied_embedding_has_both_contributions(
    make_shape: MakeShape, make_model: MakeModel, packed_batch: Batch
) -> None:
    untied = make_model(make_shape(tied=False))
    shared = untied.token_embedding.weight
    untied = Decoder(**{**vars(untied), "head": type(untied.head)(shared, None)})
    tied = Decoder(**{**vars(untied), "head": None})
    (loss, gradient), (untied_loss, parts) = (total_and_gradient(model, packed_batch) for model in (tied, untied))
    assert loss == pytest.approx(float(untied_loss), rel=1e-6)
    both = parts.token_embedding.weight + parts.head.weight
    np.testing.assert_allclose(gradient.token_embedding.weight, both, atol=1e-4)
    assert min(np.abs(part.weight).max() for part in (parts.token_embedding, parts.head)) > 0.1


def test_dropout_does_not_notice_how_rows_are_split(
    make_shape: MakeShape, make_model: MakeModel, packed_batch: Batch
) -> None:
    model, keys = make_model(make_shape(dropout=0.5)), row_keys(jax.random.key(3), 3)
    whole = total_and_gradient(model, packed_batch, keys)
    parts = [slice(row, row + 1) for row in range(3)]
    singles = [total_and_gradient(model, rows(packed_batch, part), keys[part]) for part in parts]
    assert_close(whole, jax.tree.map(lambda *leaves: sum(leaves), *singles), 1e-5)
    other = total_and_gradient(model, packed_batch, row_keys(jax.random.key(4), 3))
    assert abs(whole[0] - other[0]) > 1, "dropout must act for this test to mean anything"


def test_rm_s1_dropout_is_the_same_when_a_block_is_computed_again(
    make_shape: MakeShape, make_model: MakeModel, packed_batch: Batch
) -> None:
    def recomputing_stack(block: Any, layers: Any, x: Any, context: Any) -> Any:
        return scan_stack(jax.checkpoint(block), layers, x, context)

    model, keys = make_model(make_shape(dropout=0.5)), row_keys(jax.random.key(3), 3)
    plain, recomputed = (
        total_and_gradient(model, packed_batch, keys, Ops(stack=stack)) for stack in (scan_stack, recomputing_stack)
    )
    assert_close(plain, recomputed, 1e-6)


def test_evaluation_drops_nothing(make_shape: MakeShape, make_model: MakeModel, packed_batch: Batch) -> None:
    with_dropout, without = (make_model(make_shape(dropout=rate)) for rate in (0.5, 0.0))
    first, second = (logits_of(model, packed_batch) for model in (with_dropout, without))
    assert np.array_equal(first, second)


def test_every_place_of_dropout_has_a_mask_of_its_own(make_shape: MakeShape) -> None:
    block = Block.create(jax.random.key(0), make_shape(dropout=0.5))
    # Without weights and with biases of 1, both changes are 1 before dropout: x counts how many were kept, twice.
    block = jax.tree.map(jnp.zeros_like, block)
    for part in (block.attention.out, block.mlp.down):
        object.__setattr__(part, "bias", jnp.ones(24))
    keys = row_keys(jax.random.key(0), 5)
    seen: dict[int, Any] = {}

    def layer(index: int) -> np.ndarray:
        def attention(query: Any, key: Any, value: Any, mask: Any, *, dropout_rate: float, dropout_keys: Any) -> Any:
            assert dropout_rate == 0.5
            seen[index] = np.asarray(jax.random.key_data(dropout_keys)).tobytes()
            return query

        context = Context(AttentionMask(), None, keys)
        return np.asarray(block(jnp.zeros((5, 12, 24)), context, jnp.int32(index), attention))

    first, second = layer(0), layer(1)
    for x in (first, second):
        counts = [np.mean(x == value) for value in (0, 2, 4)]
        # 1440 draws: 0.05 is four standard deviations. Equal masks would give no 2 at all.
        np.testing.assert_allclose(counts, [0.25, 0.5, 0.25], atol=0.05)
    assert np.mean(first != second) > 0.4
    assert seen[0] != seen[1]


def test_embedding_dropout_acts_before_the_stack(
    make_shape: MakeShape, make_model: MakeModel, packed_batch: Batch
) -> None:
    entering = []

    def no_stack(block: Any, layers: Any, x: Any, context: Any) -> Any:
        entering.append(np.asarray(x))
        return x

    model = make_model(make_shape(dropout=0.25))
    for keys in (None, row_keys(jax.random.key(0), 3)):
        model.hidden(packed_batch, keys, Ops(stack=no_stack))
    whole, dropped = entering
    kept = dropped != 0
    assert np.mean(kept) == pytest.approx(0.75, abs=0.06)
    np.testing.assert_allclose(dropped[kept], whole[kept] / 0.75, rtol=1e-6)


def test_decay_acts_on_matrices_and_embeddings_only(shape: DecoderShape) -> None:
    model = jax.eval_shape(lambda key: Decoder.create(key, shape), jax.random.key(0))
    mask = decay_mask(model)
    assert jax.tree.structure(mask) == jax.tree.structure(model)
    decayed = dict(zip(path_names(mask), jax.tree.leaves(mask), strict=True))
    assert all(decayed[name] == name.endswith(".weight") for name in decayed)
    assert not decayed["layers.attention_norm.scale"]


def test_a_decayed_optimizer_takes_the_mask(make_shape: MakeShape, make_model: MakeModel) -> None:
    model = make_model(make_shape())
    optimizer = optax.adamw(0.1, weight_decay=0.5, mask=decay_mask)
    zero = jax.tree.map(jnp.zeros_like, model)
    updates, _ = jax.jit(lambda zero, model: optimizer.update(zero, optimizer.init(model), model))(zero, model)
    np.testing.assert_allclose(updates.layers.mlp.up.weight, -0.05 * model.layers.mlp.up.weight, rtol=1e-5)
    assert np.all(np.asarray(updates.layers.mlp_norm.scale) == 0)


def residual_names(jaxpr: Any) -> list[str]:
    """Names in the order of the program, inner programs included."""
    names = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "name":
            names.append(equation.params["name"])
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            names += residual_names(inner)
    return names


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_residuals_have_their_names(
    family: str, make_shape: MakeShape, make_model: MakeModel, packed_batch: Batch
) -> None:
    model = make_model(make_shape(family=family))
    jaxpr = jax.make_jaxpr(lambda model: decoder_loss(model, (), (), packed_batch, None, Ops()))(model)
    expected = [name for name in RESIDUAL_NAMES if name != "mlp_gate" or family == "llama"]
    assert residual_names(jaxpr.jaxpr) == expected


def test_program_says_what_it_is(shape: DecoderShape) -> None:
    program = decoder_program(shape, optax.sgd(0.1), clip_norm=1.0)
    trainable, frozen, variables = program.part_specs()
    assert tree_size(trainable) == parameter_count(shape)
    assert (frozen, variables) == ((), ())
    batch = program.batch_specs(5)
    assert set(batch) == {"tokens", "targets", "documents", "positions"}
    assert {(spec.shape, spec.dtype.name) for spec in batch.values()} == {((5, 12), "int32")}
    assert set(decoder_program(shape, optax.sgd(0.1), packed=False).row) == {"tokens", "targets"}
    keys = jax.ShapeDtypeStruct((5,), jax.random.key(0).dtype)
    loss, _ = jax.eval_shape(lambda *parts: program.loss(*parts, Ops()), trainable, frozen, variables, batch, keys)
    assert (loss.total.shape, loss.total.dtype) == ((), jnp.float32)
    assert (program.clip_norm, program.tokens_per_row, program.rows_independent) == (1.0, 12, True)
    assert program.calls == {"dtypes", "stack", "attention", "cross_entropy"}
    assert program.sizes is not None
    assert (program.sizes.gated, program.sizes.hidden) == (shape.family == "llama", shape.hidden)


def test_updates_of_a_fresh_model_learn_a_batch_by_heart(make_shape: MakeShape, packed_batch: Batch) -> None:
    program = decoder_program(make_shape(family="llama"), optax.adam(1e-2))
    model, _, _ = jax.jit(program.init)(jax.random.key(0))
    state = program.optimizer.init(model)

    @jax.jit
    def update(model: Decoder, state: Any) -> tuple[Decoder, Any, jax.Array]:
        def mean(model: Decoder) -> jax.Array:
            return program.loss(model, (), (), packed_batch, None, PLAIN)[0].mean()

        loss, gradient = jax.value_and_grad(mean)(model)
        changes, state = program.optimizer.update(gradient, state, model)
        return optax.apply_updates(model, changes), state, loss

    losses = []
    for _ in range(60):
        model, state, loss = update(model, state)
        losses.append(float(loss))
    assert losses[0] == pytest.approx(np.log(32), abs=0.05), "a fresh model guesses"
    assert losses[-1] < 0.1
