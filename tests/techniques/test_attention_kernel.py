"""Which kernel is chosen, what is said about it, and that all kernels mean the same."""

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
from brim.models import DecoderSettings
from brim.models.decoder import decoder_program
from brim.ops import AttentionMask, Ops, reference_attention, row_keys
from brim.program import Program, Sizes
from brim.techniques.attention_kernel import AttentionKernel, choose, fused_attention
from brim.techniques.base import Context, Points
from techniques.attention_oracle import attention_and_gradients, difference, visible_pairs

GPU = named("h100")
OLD_GPU = replace(GPU, kind="an old GPU", compute_capability=(7, 5))
CPU = replace(GPU, platform="cpu", kind="a CPU", compute_capability=None)
SIZES = Sizes(length=128, width=32, heads=4, kv_heads=2, head_width=8, hidden=64, gated=False, layers=3, vocabulary=100)


def program(**changes) -> Program:
    shape = DecoderSettings(**{"layers": 2, "width": 32, "heads": 4, "context": 8, "vocabulary": 32} | changes)
    return decoder_program(shape.resolved(), optax.sgd(0.1))


def applied(technique: AttentionKernel, device, notes: list[str] | None = None):
    """Attention as the technique puts it in place, and what it says goes to `notes`."""
    say = (lambda note: None) if notes is None else notes.append
    return technique.apply(Points(), Context(program(), device, say)).attention


def inputs(rows: int = 2, length: int = 8, heads: int = 4, width: int = 8, dtype=jnp.float32):
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(size=(rows, length, heads, width)), dtype) for _ in range(4)]


def with_gradients(attention, mask: AttentionMask, query, key, value, gradient):
    result, pull_back = jax.vjp(lambda *arrays: attention(*arrays, mask), query, key, value)
    return result, *pull_back(gradient)


# ---- the choice


CALL = {"dtype": jnp.bfloat16, "shape": (8, 1024, 12, 64), "documents": False, "dropout": False}


@pytest.mark.parametrize(
    ("wanted", "device", "call", "kernel", "reason"),
    [
        ("auto", GPU, {}, "cudnn", "allow"),
        ("auto", GPU, {"dtype": jnp.float16}, "cudnn", "allow"),
        ("auto", GPU, {"dtype": jnp.float32}, "blockwise", "these are float32"),
        ("auto", CPU, {}, "blockwise", "needs a GPU"),
        ("auto", OLD_GPU, {}, "blockwise", "capability 8.0; an old GPU has 7.5"),
        ("auto", GPU, {"shape": (8, 1024, 12, 80)}, "cudnn", "allow"),
        ("auto", GPU, {"shape": (8, 1024, 12, 128)}, "cudnn", "allow"),
        ("auto", GPU, {"shape": (8, 1024, 12, 12)}, "blockwise", "this one is 12"),
        ("auto", GPU, {"shape": (8, 1024, 12, 160)}, "blockwise", "up to 128; this one is 160"),
        ("auto", GPU, {"shape": (8, 1024, 12, 256)}, "blockwise", "up to 128; this one is 256"),
        ("auto", GPU, {"shape": (8, 1023, 12, 64)}, "cudnn", "allow"),
        ("auto", GPU, {"shape": (8, 1023, 12, 64), "documents": True}, "blockwise", "this one is 1023"),
        ("auto", GPU, {"dropout": True}, "reference", "dropout on probabilities; it keeps up to 768.0 MiB"),
        ("cudnn", CPU, {}, "blockwise", "cudnn was asked for, but"),
        ("cudnn", GPU, {"dropout": True}, "reference", "cudnn was asked for, but"),
        ("blockwise", GPU, {}, "blockwise", "asked for"),
        ("blockwise", CPU, {"dropout": True}, "reference", "blockwise was asked for, but"),
        ("reference", GPU, {}, "reference", "asked for"),
    ],
)
def test_choice(wanted, device, call, kernel: str, reason: str) -> None:
    choice = choose(wanted, device, **CALL | call)
    assert choice.kernel == kernel
    assert reason in choice.reason


def test_documents_cost_cudnn_a_dense_bias_and_the_others_nothing() -> None:
    packed = CALL | {"documents": True}
    choice = choose("auto", GPU, **packed)
    assert choice.bias_bytes == 8 * 1024 * 1024 * 2
    assert "16.0 MiB" in str(choice)
    assert choose("auto", GPU, **CALL).bias_bytes == choose("auto", CPU, **packed).bias_bytes == 0


def test_settings_are_checked() -> None:
    with pytest.raises(SettingsError, match="`block` is -1"):
        AttentionKernel(block=-1)


# ---- the technique


def test_it_fills_the_attention_point_only() -> None:
    assert AttentionKernel("reference").apply(Points(), Context(program(), CPU)) == Points()
    points = AttentionKernel("blockwise").apply(Points(), Context(program(), CPU))
    assert points.attention is not reference_attention
    assert replace(points, attention=reference_attention) == Points()


def test_what_runs_is_said_once_however_often_it_is_traced() -> None:
    notes: list[str] = []
    attention = applied(AttentionKernel(), CPU, notes)
    arrays = inputs()[:3]
    for _ in range(2):
        jax.make_jaxpr(lambda *arrays: [attention(*arrays, AttentionMask()) for _ in range(2)])(*arrays)
    (note,) = notes
    assert note == f"attention runs on the blockwise kernel: {CPU.why_not('cudnn_attention')}"


def test_nothing_is_said_of_the_plain_step() -> None:
    notes: list[str] = []
    attention = applied(AttentionKernel("reference"), GPU, notes)
    attention(*inputs()[:3], AttentionMask())
    assert notes == []


def test_dropout_takes_the_reference_in_training_and_not_in_evaluation() -> None:
    notes: list[str] = []
    attention = applied(AttentionKernel(), CPU, notes)
    query, key, value, _ = inputs()
    keys = row_keys(jax.random.key(0), 2)
    dropped = attention(query, key, value, AttentionMask(), dropout_rate=0.5, dropout_keys=keys)
    plain = reference_attention(query, key, value, AttentionMask(), dropout_rate=0.5, dropout_keys=keys)
    np.testing.assert_array_equal(dropped, plain)
    assert "reference kernel" in notes[0]
    evaluated = attention(query, key, value, AttentionMask(), dropout_rate=0.5)
    np.testing.assert_allclose(evaluated, reference_attention(query, key, value, AttentionMask()), atol=1e-6)
    assert "blockwise kernel" in notes[1]


def test_it_needs_a_program_with_attention_only_when_asked_for_by_name() -> None:
    foreign = replace(program(), calls=frozenset())
    assert AttentionKernel().needs(foreign, CPU) is None
    assert AttentionKernel("reference").needs(foreign, CPU) is None
    assert "ops.attention" in (AttentionKernel("blockwise").needs(foreign, CPU) or "")
    assert AttentionKernel("blockwise").needs(program(), CPU) is None


def test_bytes_by_hand() -> None:
    rows = 5
    assert AttentionKernel("reference").predicted_bytes(SIZES, rows, 4) == 8 * rows * 4 * 128 * 128
    assert AttentionKernel("reference").predicted_bytes(SIZES, rows, 2) == 6 * rows * 4 * 128 * 128
    assert AttentionKernel().predicted_bytes(SIZES, rows, 2) == 4 * rows * 4 * 128


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_reference_keeps_at_least_what_the_formula_says(dtype) -> None:
    """Beside inputs and masks: its exponentials in fp32, and its probabilities in the compute dtype."""
    arrays = inputs(length=128, dtype=dtype)[:3]
    _, pull_back = jax.vjp(lambda *arrays: reference_attention(*arrays, AttentionMask()), *arrays)
    kept = [x for x in jax.tree.leaves(pull_back) if x.ndim == 5 and x.dtype != bool and x.shape[-1] == 128]
    assert sum(x.nbytes for x in kept) >= AttentionKernel("reference").predicted_bytes(SIZES, 2, arrays[0].itemsize)


def test_flops_by_hand() -> None:
    """Per token and layer: 3072 multiply-adds with weights and 4096 per product of attention; a head of 3200."""
    weights = 2 * 32 * 32 + 2 * 32 * 16 + 2 * 32 * 64
    product = 128 * 32
    plain = 3 * (6 * weights + 6 * 2 * product) + 6 * 32 * 100
    assert AttentionKernel().flops_ratio(SIZES) == pytest.approx(1 + 3 * 2 * product / plain)
    assert AttentionKernel("reference").flops_ratio(SIZES) == 1.0


# ---- one meaning


KERNELS = {
    "reference": reference_attention,
    "blockwise": applied(AttentionKernel("blockwise", block=3), CPU),
    "fused": partial(fused_attention, implementation="xla"),
}


def test_the_kernels_are_different_programs() -> None:
    arrays = inputs()
    jaxprs = {
        str(jax.make_jaxpr(partial(with_gradients, kernel, AttentionMask()))(*arrays)) for kernel in KERNELS.values()
    }
    assert len(jaxprs) == len(KERNELS)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("causal", [True, False])
def test_at_s1_a_query_without_a_key_gives_zero(kernel: str, causal: bool) -> None:
    run = jax.jit(partial(with_gradients, KERNELS[kernel]))
    arrays = inputs(rows=1, heads=1)
    for real in (slice(0, 4), slice(4, 8)):  # padded on the right, padded on the left
        documents = np.zeros((1, 8), np.int32)
        documents[:, real] = 1
        found = run(AttentionMask(jnp.asarray(documents), causal), *arrays)
        alone = attention_and_gradients(*(x[:, real] for x in arrays), visible_pairs(1, 4, None, causal=causal))
        assert difference([x[:, real] for x in found], alone) < 1e-5  # sums of 8 fp32 terms
        for whole in found:
            np.testing.assert_array_equal(np.delete(whole, np.r_[real], axis=1), 0.0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_at_s1_padding_in_the_middle_of_packed_rows(kernel: str) -> None:
    documents = np.array([[1, 1, 0, 2, 2, 2, 0, 0], [0, 1, 2, 2, 0, 0, 3, 3]], np.int32)
    arrays = inputs()
    found = with_gradients(KERNELS[kernel], AttentionMask(jnp.asarray(documents)), *arrays)
    wanted = attention_and_gradients(*arrays, visible_pairs(2, 8, documents, causal=True))
    assert difference(found, wanted) < 1e-5
    np.testing.assert_array_equal(np.asarray(found[0])[documents == 0], 0.0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_at_s2_packed_documents_do_not_see_each_other(kernel: str) -> None:
    built = program(context=8)
    model, _, _ = built.init(jax.random.key(0))
    kernel_function = KERNELS[kernel]
    ops = Ops(attention=lambda q, k, v, mask, **dropout: kernel_function(q, k, v, mask))

    def logits(model, tokens: list[int]):
        row = jnp.asarray([tokens], jnp.int32)
        documents, positions = jnp.array([[1, 1, 1, 2, 2, 2, 2]]), jnp.array([[0, 1, 2, 0, 1, 2, 3]])
        batch = {"tokens": row, "documents": documents[:, -len(tokens) :], "positions": positions[:, -len(tokens) :]}
        return model.logits(batch, ops)[0, -4:]

    packed = logits(model, [5, 6, 7, 8, 9, 10, 11])
    np.testing.assert_array_equal(packed, logits(model, [21, 22, 23, 8, 9, 10, 11]))
    np.testing.assert_allclose(packed, logits(model, [8, 9, 10, 11]), atol=1e-6)
    assert np.abs(packed - logits(model, [5, 6, 7, 8, 9, 10, 12])).max() > 1e-3

    gradient = jax.grad(lambda model: (logits(model, [5, 6, 7, 8, 9, 10, 11])[:, :4] ** 2).sum())(model)
    of_tokens = np.abs(np.asarray(gradient.token_embedding.weight)).max(axis=1)
    np.testing.assert_array_equal(of_tokens[[5, 6, 7]], 0.0)
    assert (of_tokens[[8, 9, 10, 11]] > 0).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 2e-2)])
@pytest.mark.parametrize("device", [CPU, GPU], ids=["cpu", "gpu"])
def test_at_s3_a_head_width_that_the_fused_kernel_does_not_take(device, dtype, tolerance: float) -> None:
    notes: list[str] = []
    attention = applied(AttentionKernel("cudnn"), device, notes)
    arrays = inputs(heads=4, width=48 // 4, dtype=dtype)
    found = with_gradients(attention, AttentionMask(), *arrays)
    seen = visible_pairs(2, 8, None, causal=True)
    assert difference(found, attention_and_gradients(*arrays, seen)) < tolerance
    padded_to_16 = attention_and_gradients(*arrays, seen, scale=16**-0.5)
    assert difference(found, padded_to_16) > 3 * tolerance
    (note,) = notes
    assert note.startswith("attention runs on the blockwise kernel: cudnn was asked for, but")
    if device is GPU and dtype == jnp.bfloat16:
        assert note.endswith("this one is 12")


# ---- compiled for a GPU that is not here


def compiled_for_gpu(function, *specs):
    from jax.experimental import topologies
    from jax.sharding import NamedSharding, PartitionSpec

    topology = topologies.get_topology_desc(platform="cuda", target_config=GPU.target_config(), topology="1x1x1")
    sharding = NamedSharding(topologies.make_mesh(topology, (1,), ("device",)), PartitionSpec())
    placed = [jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding) for spec in specs]
    return jax.jit(function).trace(*placed).lower(lowering_platforms=("cuda",)).compile()


@pytest.mark.plan
@pytest.mark.parametrize("packed", [False, True])
def test_cudnn_compiles_with_grouped_heads_and_documents_at_the_said_price(packed: bool) -> None:
    rows, length = 4, 1024
    attention = applied(AttentionKernel(), GPU)
    query = jax.ShapeDtypeStruct((rows, length, 8, 64), jnp.bfloat16)
    key = jax.ShapeDtypeStruct((rows, length, 4, 64), jnp.bfloat16)
    documents = jax.ShapeDtypeStruct((rows, length), jnp.int32)

    def loss(query, key, value, documents):
        mask = AttentionMask(documents if packed else None)
        return (attention(query, key, value, mask).astype(jnp.float32) ** 2).sum()

    compiled = compiled_for_gpu(jax.grad(loss, argnums=(0, 1, 2)), query, key, key, documents)
    assert compiled.as_text().count("__cudnn$fmha") == 2
    assert ("ScaleBias" in compiled.as_text()) == packed
    bias = choose("auto", GPU, **CALL | {"shape": query.shape, "documents": packed}).bias_bytes
    temporaries = compiled.memory_analysis().temp_size_in_bytes
    result_and_statistics = rows * length * 8 * (64 * 2 + 4)
    assert temporaries >= 2 * bias
    assert temporaries <= 2 * bias + 4 * result_and_statistics
