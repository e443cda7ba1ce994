"""Attention and its gradients in NumPy float64, one query at a time: slow, and independent of the code under test."""

from __future__ import annotations

import numpy as np


def visible_pairs(rows: int, length: int, documents: np.ndarray | None, *, causal: bool) -> np.ndarray:
    """Which keys each query sees, [rows, queries, keys], from the words of the contract."""
    seen = np.zeros((rows, length, length), bool)
    for row, query, key in np.ndindex(seen.shape):
        same = documents is None or (documents[row, query] == documents[row, key] != 0)
        seen[row, query, key] = same and (key <= query or not causal)
    return seen


def attention_and_gradients(query, key, value, gradient, seen, scale: float | None = None) -> tuple[np.ndarray, ...]:
    """Result, and gradients with respect to query, key and value of `sum(result * gradient)`."""
    query, key, value, gradient = (np.asarray(x, np.float64) for x in (query, key, value, gradient))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    group = query.shape[2] // key.shape[2]
    result, of_query, of_key, of_value = (np.zeros_like(x) for x in (query, query, key, value))
    for row, position, head in np.ndindex(query.shape[:3]):
        keys = np.flatnonzero(seen[row, position])
        if not keys.size:
            continue
        here, shared = (row, position, head), head // group
        scores = key[row, keys, shared] @ query[here] * scale
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        result[here] = weights @ value[row, keys, shared]
        of_weights = value[row, keys, shared] @ gradient[here]
        of_scores = weights * (of_weights - weights @ of_weights) * scale
        of_query[here] = of_scores @ key[row, keys, shared]
        of_key[row, keys, shared] += np.outer(of_scores, query[here])
        of_value[row, keys, shared] += np.outer(weights, gradient[here])
    return result, of_query, of_key, of_value


def difference(found, wanted) -> float:
    """Largest over arrays of max |found - wanted| / max |wanted|."""
    pairs = zip(found, wanted, strict=True)
    return max(float(np.abs(np.asarray(a, np.float64) - b).max() / np.abs(b).max()) for a, b in pairs)
