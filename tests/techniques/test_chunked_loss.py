"""The chunked loss against an oracle in float64, and what it promises about memory and work."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from brim.errors import SettingsError
from brim.hardware.device import named
from brim.hardware.flops import count_flops
from brim.models import DecoderSettings
from brim.models.decoder import decoder_program
from brim.ops import IGNORED, reference_cross_entropy
from brim.program import Program, Sizes
from brim.techniques.base import Context, Points
from brim.techniques.chunked_loss import ChunkedLoss, chunked_cross_entropy

GPU = named("h100")
CPU = replace(GPU, platform="cpu", kind="a CPU", compute_capability=None)
SIZES = Sizes(length=128, width=32, heads=4, kv_heads=2, head_width=8, hidden=64, gated=False, layers=3, vocabulary=100)
ROWS, LENGTH, WIDTH, VOCABULARY = 3, 7, 16, 29  # 21 tokens: no chunk length but 1, 3, 7, 21 divides them
FP32 = 1e-5  # sums of at most 29 fp32 terms
BF16 = 2e-2  # 8 bits of mantissa in the gradient of the logits


def inputs(dtype=jnp.float32):
    """Hidden states, head, targets of which some do not count."""
    random = np.random.default_rng(0)
    targets = random.integers(0, VOCABULARY, (ROWS, LENGTH))
    targets[0, :3], targets[2, -1], targets[1, 3] = IGNORED, -1, -100
    hidden = jnp.asarray(random.normal(size=(ROWS, LENGTH, WIDTH)), dtype)
    return hidden, jnp.asarray(random.normal(size=(VOCABULARY, WIDTH)), jnp.float32), jnp.asarray(targets, jnp.int32)


def oracle(hidden, head, targets, scale: float = 1.0):
    """Total, count, and the total's gradients times `scale`, in float64."""
    hidden, head, targets = np.asarray(hidden, np.float64), np.asarray(head, np.float64), np.asarray(targets)
    total, of_hidden, of_head = 0.0, np.zeros_like(hidden), np.zeros_like(head)
    for place in zip(*np.nonzero(targets >= 0), strict=True):
        logits = head @ hidden[place]
        normaliser = np.log(np.exp(logits - logits.max()).sum()) + logits.max()
        total += normaliser - logits[targets[place]]
        change = np.exp(logits - normaliser) - (np.arange(len(head)) == targets[place])
        of_hidden[place] = change @ head * scale
        of_head += np.outer(change, hidden[place]) * scale
    return total, (targets >= 0).sum(), of_hidden, of_head


def with_gradients(cross_entropy, hidden, head, targets, scale: float = 1.0):
    """The same from code under test; `scale` is the cotangent that comes in."""

    def loss(hidden, head):
        total, count = cross_entropy(hidden, head, targets)
        return scale * total, (total, count)

    gradients, (total, count) = jax.grad(loss, argnums=(0, 1), has_aux=True)(hidden, head)
    return total, count, *gradients


def check(found, wanted, tolerance: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(np.asarray(one, np.float64) - other).max() <= tolerance * np.abs(other).max()


@pytest.mark.parametrize("tokens", [1, 4, 8, 21, 1000])
def test_loss_and_gradients_equal_the_oracle(tokens: int) -> None:
    chunked = partial(chunked_cross_entropy, tokens=tokens)
    jaxprs = [jax.make_jaxpr(partial(with_gradients, f))(*inputs()) for f in (chunked, reference_cross_entropy)]
    assert str(jaxprs[0]) != str(jaxprs[1])
    check(jax.jit(partial(with_gradients, chunked))(*inputs()), oracle(*inputs()), FP32)


def test_the_incoming_cotangent_scales_the_gradients() -> None:
    chunked = partial(chunked_cross_entropy, tokens=4)
    check(jax.jit(partial(with_gradients, chunked, scale=-3.7))(*inputs()), oracle(*inputs(), scale=-3.7), FP32)


def test_the_count_has_no_gradient() -> None:
    hidden, head, targets = inputs()
    gradient = jax.grad(lambda hidden: chunked_cross_entropy(hidden, head, targets, tokens=4)[1])(hidden)
    np.testing.assert_array_equal(gradient, 0.0)


def test_bf16_gradients_have_the_dtypes_of_what_they_belong_to() -> None:
    arrays = inputs(jnp.bfloat16)
    found = jax.jit(partial(with_gradients, partial(chunked_cross_entropy, tokens=4)))(*arrays)
    assert [x.dtype for x in found] == [jnp.float32, jnp.float32, jnp.bfloat16, jnp.float32]
    rounded_head = arrays[1].astype(jnp.bfloat16)
    check(found, oracle(arrays[0], rounded_head, arrays[2]), BF16)


def test_the_gradient_of_the_head_is_summed_in_fp32() -> None:
    """1024 chunks that each add about 2**-8 of the first: a sum in bf16 would never move from it."""
    hidden = jnp.full((1024, 1), 2.0**-8, jnp.bfloat16).at[0].set(1.0)
    head, targets = jnp.zeros((2, 1), jnp.float32), jnp.zeros(1024, jnp.int32)
    *_, of_head = with_gradients(partial(chunked_cross_entropy, tokens=1), hidden, head, targets)
    np.testing.assert_allclose(of_head[:, 0], [-0.5 * (1 + 1023 / 256), 0.5 * (1 + 1023 / 256)], rtol=1e-6)


@pytest.mark.parametrize(("vocabulary", "right"), [(50257, 10.82491), (100, 4.60517)])
@pytest.mark.parametrize("differentiated", [False, True])
def test_bf_s2_the_loss_is_fp32(vocabulary: int, right: float, differentiated: bool) -> None:
    """All logits 0 in bf16; a softmax in bf16 gives 10.8125 and 4.59375."""
    arrays = jnp.zeros((6, 8), jnp.bfloat16), jnp.zeros((vocabulary, 8), jnp.bfloat16), jnp.arange(6)
    chunked = partial(chunked_cross_entropy, tokens=4)
    total, count = with_gradients(chunked, *arrays)[:2] if differentiated else chunked(*arrays)
    assert total.dtype == jnp.float32
    assert float(total / count) == pytest.approx(right, abs=1e-5)


def test_logits_are_not_rounded_to_bf16() -> None:
    """Logits 256 and 257 in fp32; bf16 has steps of 2 there, and would give log 2 = 0.693."""
    hidden = jnp.array([[16.0, 1.0]], jnp.bfloat16)
    head = jnp.array([[16.0, 0.0], [16.0, 1.0]], jnp.bfloat16)
    total, _ = chunked_cross_entropy(hidden, head, jnp.array([1]), tokens=1)
    assert float(total) == pytest.approx(np.log1p(np.exp(-1.0)), abs=1e-5)


def test_in_fp16_a_loss_scale_reaches_gradients_below_the_least_fp16() -> None:
    """A wrong token's probability is e**-18 = 1.5e-8, which is 0 in fp16; times a scale of 2**20 it is 0.016."""
    hidden = jnp.array([[18.0, 0.0]], jnp.float16)
    head = jnp.array([[1.0, 0.0], [0.0, 1.0]], jnp.float32)

    def scaled(hidden: jax.Array, head: jax.Array) -> jax.Array:
        return 2.0**20 * chunked_cross_entropy(hidden, head, jnp.array([0]), tokens=1)[0]

    of_hidden, of_head = jax.grad(scaled, argnums=(0, 1))(hidden, head)
    wrong = 2.0**20 * np.exp(-18.0)
    assert (of_hidden.dtype, of_head.dtype) == (jnp.float16, jnp.float32)
    # What comes from the right token is 0 even in fp32: its probability is 1 there.
    assert float(of_hidden[0, 1]) == pytest.approx(wrong, rel=1e-2)
    assert float(of_head[1, 0]) == pytest.approx(18 * wrong, rel=1e-2)


def test_large_logits_do_not_overflow() -> None:
    hidden, head, targets = inputs()
    found = with_gradients(partial(chunked_cross_entropy, tokens=4), 100 * hidden, head, targets)
    check(found, oracle(100 * hidden, head, targets), 1e-4)


def test_without_any_target_all_is_zero() -> None:
    hidden, head, targets = inputs()
    found = with_gradients(partial(chunked_cross_entropy, tokens=4), hidden, head, jnp.full_like(targets, IGNORED))
    for value in found:
        np.testing.assert_array_equal(value, 0.0)


# ---- price


def sized(tokens: int, vocabulary: int, width: int, dtype=jnp.float32):
    specs = ((tokens, width), dtype), ((vocabulary, width), jnp.float32), ((tokens,), jnp.int32)
    return [jax.ShapeDtypeStruct(*spec) for spec in specs]


def temporaries(cross_entropy, specs) -> int:
    """Device bytes of the compiled loss and gradients beyond inputs and results."""
    compiled = jax.jit(partial(with_gradients, cross_entropy)).lower(*specs).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_compiled_bytes_are_those_of_one_chunk() -> None:
    specs = sized(2048, 4096, 64)
    whole, chunk, head = 2048 * 4096 * 8, 256 * 4096 * 8, 4096 * 64 * 4
    assert temporaries(reference_cross_entropy, specs) >= 0.95 * whole
    chunked = temporaries(partial(chunked_cross_entropy, tokens=256), specs)
    assert 0.5 * chunk <= chunked <= 1.05 * (chunk + 2 * head)


def test_evaluation_makes_no_gradients() -> None:
    specs = sized(64, 512, 32)
    product = 2 * 64 * 512 * 32
    chunked = partial(chunked_cross_entropy, tokens=16)
    assert count_flops(chunked, *specs).matmul == product
    assert count_flops(partial(with_gradients, chunked), *specs).matmul == 3 * product
    assert count_flops(partial(with_gradients, reference_cross_entropy), *specs).matmul == 3 * product


@pytest.mark.parametrize("tokens", [1, 2, 5, 16, 63, 64, 100])
def test_filling_up_costs_no_more_than_stated(tokens: int) -> None:
    specs = sized(64, 512, 32)
    found = count_flops(partial(with_gradients, partial(chunked_cross_entropy, tokens=tokens)), *specs).matmul
    plain = count_flops(partial(with_gradients, reference_cross_entropy), *specs).matmul
    assert plain <= found <= plain * ChunkedLoss(tokens).flops_ratio(SIZES)


def test_a_frozen_head_costs_no_gradient_of_it() -> None:
    hidden, head, targets = sized(64, 4096, 256)

    def loss(hidden, head, targets):
        return chunked_cross_entropy(hidden, head, targets, tokens=16)[0]

    of_hidden = jax.jit(jax.grad(loss)).lower(hidden, head, targets).compile()
    assert of_hidden.memory_analysis().temp_size_in_bytes < 4096 * 256 * 4  # smaller than one such gradient


# ---- the technique


def program() -> Program:
    shape = DecoderSettings(layers=1, width=16, heads=2, context=8, vocabulary=32).resolved()
    return decoder_program(shape, optax.sgd(0.1))


def test_it_fills_the_cross_entropy_point_only() -> None:
    context = Context(program(), CPU)
    assert ChunkedLoss().apply(Points(), context) == Points()
    points = ChunkedLoss(4).apply(Points(), context)
    check(points.cross_entropy(*inputs()), oracle(*inputs())[:2], FP32)
    assert points.cross_entropy is not reference_cross_entropy
    assert replace(points, cross_entropy=reference_cross_entropy) == Points()


def test_settings_are_checked() -> None:
    with pytest.raises(SettingsError, match="`tokens` is -1"):
        ChunkedLoss(-1)


def test_it_needs_a_loss_it_can_replace() -> None:
    foreign = replace(program(), calls=frozenset())
    assert ChunkedLoss().needs(foreign, CPU) is None
    assert "ops.cross_entropy" in (ChunkedLoss(8).needs(foreign, CPU) or "")
    assert ChunkedLoss.options(foreign, CPU) == (ChunkedLoss(),)


def test_options_are_off_and_two_sizes() -> None:
    assert {option.tokens for option in ChunkedLoss.options(program(), GPU)} == {0, 256, 1024}
    assert {option.tokens for option in ChunkedLoss.options(program(), CPU)} == {0, 256, 512}


def test_bytes_by_hand() -> None:
    """128 positions in each of 5 rows; vocabulary 100."""
    assert ChunkedLoss().predicted_bytes(SIZES, 5, 2) == 5 * 128 * 100 * 6
    assert ChunkedLoss(64).predicted_bytes(SIZES, 5, 2) == 64 * 100 * 6
    assert ChunkedLoss(4096).predicted_bytes(SIZES, 5, 4) == 5 * 128 * 100 * 8


@pytest.mark.plan
@pytest.mark.parametrize("tokens", [0, 1024, 2048])
def test_bytes_on_a_gpu_are_those_of_the_formula(tokens: int) -> None:
    from jax.experimental import topologies
    from jax.sharding import NamedSharding, PartitionSpec

    topology = topologies.get_topology_desc(platform="cuda", target_config=GPU.target_config(), topology="1x1x1")
    sharding = NamedSharding(topologies.make_mesh(topology, (1,), ("device",)), PartitionSpec())
    specs = [
        jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding)
        for spec in sized(8192, 50304, 768, jnp.bfloat16)
    ]
    loss = partial(chunked_cross_entropy, tokens=tokens) if tokens else reference_cross_entropy
    lowered = jax.jit(partial(with_gradients, loss)).trace(*specs).lower(lowering_platforms=("cuda",))
    found = lowered.compile().memory_analysis().temp_size_in_bytes
    formula = (tokens or 8192) * 50304 * (2 + 4) + (2 * 50304 * 768 if tokens else 0)  # and the head in bf16
    assert found == pytest.approx(formula, rel=0.02)
