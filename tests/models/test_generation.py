from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brim.errors import DataError, SettingsError
from brim.models import DecoderShape, generation
from brim.models.decoder import Decoder
from brim.models.generation import Cache, Sampling, choose, extend, generate
from brim.ops import Ops

MakeModel = Callable[[DecoderShape], Decoder]
MakeShape = Callable[..., DecoderShape]
GREEDY = Sampling(temperature=0.0)
KEY = jax.random.key(0)


logits_of = jax.jit(lambda model, tokens: model.logits({"tokens": tokens}, Ops()))
extend_jitted = jax.jit(extend)


def full_logits(model: Decoder, tokens: list[int]) -> np.ndarray:
    """Logits after each token, by the forward pass of training. Tokens after the text do not reach it."""
    padded = [*tokens, *[0] * (model.shape.context - len(tokens))]
    return np.asarray(logits_of(model, jnp.asarray([padded], jnp.int32))[0, : len(tokens)])


def test_cached_logits_equal_those_of_the_full_forward_pass(shape: DecoderShape, make_model: MakeModel) -> None:
    model = make_model(shape)
    tokens = np.random.default_rng(0).integers(0, 32, (3, 12))
    expected = [full_logits(model, row.tolist()) for row in tokens]
    cache, start = Cache.create(shape, 3, 14, jnp.float32), 0
    for count in [7, 1, 1, 1, 1, 1]:
        piece = jnp.asarray(tokens[:, start : start + count], jnp.int32)
        logits, cache = extend_jitted(model, cache, piece, jnp.int32(start))
        start += count
        for row in range(3):
            np.testing.assert_allclose(logits[row], expected[row][start - 1], atol=1e-4)


def test_bf16_cache_computes_in_bf16(make_shape: MakeShape, make_model: MakeModel) -> None:
    shape = make_shape(family="llama")
    model = make_model(shape)
    empty = Cache.create(shape, 1, 4, jnp.bfloat16)
    logits, cache = extend_jitted(model, empty, jnp.asarray([[1, 2, 3]], jnp.int32), jnp.int32(0))
    assert logits.dtype == cache.keys.dtype == jnp.bfloat16
    expected = full_logits(model, [1, 2, 3])[-1]
    assert np.abs(np.asarray(logits[0], np.float64) - expected).max() < 0.06 * np.abs(expected).max()


def greedy_by_hand(model: Decoder, tokens: list[int], new_tokens: int) -> list[int]:
    """Without a cache. When the context is full, the last half of it is read anew."""
    window, drawn = list(tokens), []
    for _ in range(new_tokens):
        if len(window) > model.shape.context:
            window = window[-(model.shape.context // 2) :]
        drawn.append(int(full_logits(model, window)[-1].argmax()))
        window.append(drawn[-1])
    return drawn


def test_greedy_text_equals_that_without_a_cache_also_when_the_context_is_full(
    shape: DecoderShape, make_model: MakeModel
) -> None:
    model = make_model(shape)
    found = list(generate(model, [3, 1, 4], new_tokens=24, key=KEY, sampling=GREEDY))
    assert found == greedy_by_hand(model, [3, 1, 4], 24)
    assert len(set(found)) > 3, "a text of one token would hide mistakes"


def test_a_prompt_may_fill_the_context(make_shape: MakeShape, make_model: MakeModel) -> None:
    model = make_model(make_shape())
    prompt = list(range(12))
    assert list(generate(model, prompt, new_tokens=3, key=KEY, sampling=GREEDY)) == greedy_by_hand(model, prompt, 3)


def test_same_key_same_text(make_shape: MakeShape, make_model: MakeModel) -> None:
    model = make_model(make_shape())
    first, again, other = (
        list(generate(model, [1], new_tokens=10, key=jax.random.key(seed), sampling=Sampling(temperature=3.0)))
        for seed in (0, 0, 1)
    )
    assert first == again != other


def test_one_program_for_all_single_tokens(make_shape: MakeShape, make_model: MakeModel) -> None:
    model = make_model(make_shape(layers=1))
    before = generation._advance._cache_size()
    list(generate(model, [1, 2, 3], new_tokens=8, key=KEY))
    assert generation._advance._cache_size() - before == 2, "one for the prompt, one for single tokens"


def test_stop_id_ends_the_text_and_is_not_given_out(make_shape: MakeShape, make_model: MakeModel) -> None:
    model = make_model(make_shape())
    whole = list(generate(model, [7], new_tokens=8, key=KEY, sampling=Sampling(temperature=5.0)))
    at = next(i for i in range(1, 8) if whole[i] not in whole[:i])
    stopped = generate(model, [7], new_tokens=8, key=KEY, sampling=Sampling(temperature=5.0), stop_id=whole[at])
    assert list(stopped) == whole[:at]


def test_no_new_tokens_is_no_text(make_shape: MakeShape, make_model: MakeModel) -> None:
    assert list(generate(make_model(make_shape()), [1], new_tokens=0, key=KEY)) == []


PROBABILITIES = np.array([0.1, 0.4, 0.2, 0.25, 0.05])


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), PROBABILITIES),
        (Sampling(temperature=0.0), [0, 1, 0, 0, 0]),
        (Sampling(temperature=0.5), PROBABILITIES**2 / (PROBABILITIES**2).sum()),
        (Sampling(top_k=1), [0, 1, 0, 0, 0]),
        (Sampling(top_k=3), [0, 0.4 / 0.85, 0.2 / 0.85, 0.25 / 0.85, 0]),
        (Sampling(top_k=99), PROBABILITIES),
        (Sampling(top_p=1.0), PROBABILITIES),
        # 0.4 + 0.25 reach 0.6; 0.4 + 0.25 + 0.2 reach 0.7; the first alone reaches 0.3.
        (Sampling(top_p=0.6), [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0]),
        (Sampling(top_p=0.7), [0, 0.4 / 0.85, 0.2 / 0.85, 0.25 / 0.85, 0]),
        (Sampling(top_p=0.3), [0, 1, 0, 0, 0]),
        (Sampling(top_k=2, top_p=0.9), [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0]),
    ],
    ids=str,
)
def test_tokens_are_drawn_with_the_asked_probabilities(sampling: Sampling, expected: np.ndarray) -> None:
    logits = jnp.asarray(np.log(PROBABILITIES) + 3, jnp.float32)
    keys = jax.random.split(KEY, 8000)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: choose(logits, key, sampling)))(keys))
    # 8000 draws: four standard deviations of a share are 0.022.
    shares = np.bincount(drawn, minlength=5) / len(drawn)
    np.testing.assert_allclose(shares, expected, atol=0.022)
    assert np.all(shares[np.asarray(expected) == 0] == 0)


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ([], SettingsError, "the prompt has no tokens"),
        ([1] * 13, SettingsError, "the prompt has 13 tokens; the model's context is 12"),
        ([1, 32], DataError, "token id 32; the vocabulary is 0 to 31"),
        ([-1], DataError, "token id -1"),
    ],
)
def test_bad_prompts_are_refused_before_anything_runs(
    prompt: list[int], error: type, message: str, make_shape: MakeShape, make_model: MakeModel
) -> None:
    with pytest.raises(error, match=message):
        generate(make_model(make_shape()), prompt, new_tokens=3, key=KEY)


@pytest.mark.parametrize(
    "values", [{"temperature": -0.1}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.1}], ids=str
)  # fmt: skip
def test_sampling_out_of_range_names_the_key(values: dict) -> None:
    with pytest.raises(SettingsError, match=f"`{next(iter(values))}` is"):
        Sampling(**values)
