from __future__ import annotations

import json
import logging
import math
import os
import resource
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from brim.errors import CheckpointError, SettingsError
from brim.training.checkpoint import Checkpoints
from brim.training.checkpoint_files import kept, ranked
from brim.tree import path_names, specs_of


@pytest.fixture
def checkpoints(tmp_path):
    made = Checkpoints(tmp_path / "check points é", keep_last=10, keep_best=1)
    yield made
    made.close()


def model(layers: int = 2, width: int = 8, vocabulary: int = 11, *, tied: bool = False):
    """Parameters and Adam moments of something like a decoder: layers by name, a head when it is not tied."""
    keys = iter(jax.random.split(jax.random.key(0), 2 * layers + 2))
    parameters = {
        "embedding": jax.random.normal(next(keys), (vocabulary, width)),
        **{f"layer{i}": {"weight": jax.random.normal(next(keys), (width, width))} for i in range(layers)},
    }
    if not tied:
        parameters["head"] = jax.random.normal(next(keys), (width, vocabulary))
    return {"trainable": parameters, "optimizer": optax.adam(1e-3).init(parameters)}


def bits(tree) -> list[tuple[str, tuple[int, ...], bytes]]:
    def raw(leaf):
        key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if key else leaf).tobytes()

    return [(str(leaf.dtype), leaf.shape, raw(leaf)) for leaf in jax.tree.leaves(tree)]


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.rglob("*"))}


@contextmanager
def files_no_larger_than(size_bytes: int):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_ck_s3_keep_last_and_best_never_delete_the_newest_or_the_best(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep_last=1, keep_best=1)
    on_disk = []
    for step, loss in ((100, 1.0), (200, 1.2), (300, 1.3), (400, 1.4)):
        checkpoints.save(step, {"x": jnp.ones(3)}, {}, loss=loss, wait=True)
        on_disk.append(set(checkpoints.steps()))
    assert on_disk == [{100}, {100, 200}, {100, 300}, {100, 400}]
    assert (checkpoints.latest(), checkpoints.best()) == (400, 100)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["100", "400"]
    checkpoints.close()


def test_ck_s3_nan_is_never_best_and_of_equals_the_newer_is(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep_last=1, keep_best=1)
    for step, loss in ((1, math.nan), (2, 2.0), (3, 2.0), (4, math.nan), (5, -math.inf), (6, None)):
        checkpoints.save(step, {"x": jnp.ones(3)}, {}, loss=loss, wait=True)
    assert checkpoints.steps() == [3, 6]
    assert checkpoints.best() == 3
    checkpoints.close()


def test_ck_s3_which_ones_stay():
    losses = {10: 3.0, 20: None, 30: 1.0, 40: 2.0, 50: 5.0}
    assert ranked(losses) == [30, 40, 10, 50]
    assert kept(losses, 50, keep_last=2, keep_best=2) == {30, 40, 50}
    assert kept(losses, 50, keep_last=1, keep_best=0) == {50}
    # A run that went back to 10 and saved 15: the one just written stays although larger numbers exist.
    assert kept({**losses, 15: None}, 15, keep_last=1, keep_best=1) == {15, 30, 50}


def test_ck_s3_keeping_nothing_is_an_error(tmp_path):
    with pytest.raises(SettingsError, match="keep_last"):
        Checkpoints(tmp_path, keep_last=0, keep_best=1)
    with pytest.raises(SettingsError, match="keep_best"):
        Checkpoints(tmp_path, keep_last=1, keep_best=-1)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"layers": 3}, ["3 missing in the checkpoint", "trainable.layer2.weight", "optimizer.0.mu.layer2.weight"]),
        ({"layers": 1}, ["3 unexpected in the checkpoint", "trainable.layer1.weight"]),
        ({"width": 12}, ["12 different", "embedding (float32[11,8] saved, float32[11,12] expected)"]),
        ({"vocabulary": 16}, ["6 different", "trainable.head (float32[8,11] saved, float32[8,16] expected)"]),
        ({"tied": True}, ["3 unexpected in the checkpoint", "trainable.head"]),
    ],
)
def test_ck_s4_a_changed_model_is_refused_and_nothing_is_touched(checkpoints, changed, said):
    checkpoints.save(5, model(), {"log_every": 1}, wait=True)
    before = contents(checkpoints.folder)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.restore(5, specs_of(model(**changed)))
    assert all(words in str(caught.value) for words in said), str(caught.value)
    assert contents(checkpoints.folder) == before
    assert bits(checkpoints.restore(5, specs_of(model()))[0]) == bits(model())


def test_ck_s4_a_changed_dtype_or_kind_of_key_is_refused(checkpoints):
    checkpoints.save(5, {"w": jnp.ones(2), "key": jax.random.key(0)}, {}, wait=True)
    like = {"w": jnp.ones(2, jnp.bfloat16), "key": jax.random.key(0, impl="rbg")}
    with pytest.raises(
        CheckpointError, match=r"2 different.*key<fry>\[\] saved, key<rbg>.*float32\[2\] saved, bfloat16"
    ):
        checkpoints.restore(5, like)


def test_ck_s4_ten_are_named_and_all_are_counted(checkpoints):
    checkpoints.save(5, {"other": jnp.ones(1)}, {}, wait=True)
    with pytest.raises(CheckpointError, match=r"25 missing.*w09, \.\.\.") as caught:
        checkpoints.restore(5, {f"w{i:02d}": jnp.ones(1) for i in range(25)})
    assert "w10" not in str(caught.value)


def test_ck_s4_a_missing_checkpoint_is_an_error_that_lists_the_others(checkpoints):
    checkpoints.save(5, {"x": jnp.ones(1)}, {}, wait=True)
    with pytest.raises(CheckpointError, match=r"no complete checkpoint 6.*\n\nhint: complete ones here: 5"):
        checkpoints.restore(6, {"x": jnp.ones(1)})


def test_ck_s5_moments_and_count_come_back(checkpoints):
    optimizer = optax.adam(1e-3, b1=0.9, b2=0.999, eps=1e-8)
    parameter = jnp.zeros(())

    def step(state, gradient):
        updates, moments = optimizer.update(jnp.float32(gradient), state["optimizer"])
        return updates, {"w": optax.apply_updates(state["w"], updates), "optimizer": moments}

    state = {"w": parameter, "optimizer": optimizer.init(parameter)}
    for _ in range(10):
        _, state = step(state, 1.0)
    checkpoints.save(10, state, {}, wait=True)
    restored, _ = checkpoints.restore(10, specs_of(state))
    assert bits(restored) == bits(state)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    # The count reset would give 1.88956e-3, a full reset 1.0000e-3. Five digits are given.
    assert float(step(restored, 0.1)[0]) == pytest.approx(-9.1102e-4, rel=2e-5)


def test_ck_s6_random_state_comes_back_at_epoch_ends_and_between(checkpoints):
    inputs = jax.random.normal(jax.random.key(7), (12, 16))

    @jax.jit
    def step(state, row):
        key, dropout = jax.random.split(state["key"])
        loss, gradient = jax.value_and_grad(
            lambda w: jnp.mean(jnp.square(jnp.where(jax.random.bernoulli(dropout, 0.9, row.shape), row, 0) * w - 1))
        )(state["w"])
        return {"w": state["w"] - 0.1 * gradient, "key": key, "count": state["count"] + 1}, loss

    state = {"w": jnp.ones(16), "key": jax.random.key(3), "count": jnp.int32(0)}
    straight = []
    for update in range(1, 13):  # 3 epochs of 4 updates
        state, loss = step(state, inputs[update - 1])
        straight.append(float(loss))
        if update in (4, 6, 8):
            checkpoints.save(update, state, {})
    for start in (4, 6, 8):
        resumed, _ = checkpoints.restore(start, specs_of(state))
        losses = []
        for update in range(start + 1, 13):
            resumed, loss = step(resumed, inputs[update - 1])
            losses.append(float(loss))
        assert losses == straight[start:]
        assert bits(resumed) == bits(state)


def test_every_dtype_and_kind_of_tree_comes_back_bit_for_bit(checkpoints):
    module = eqx.filter(eqx.nn.MLP(3, 3, 4, 2, key=jax.random.key(0)), eqx.is_array)
    state = {
        "module": module,
        "optimizer": optax.adamw(1e-3).init(module),
        "key": jax.random.key(5),
        "keys": jax.random.split(jax.random.key(5, impl="rbg"), 3),
        "dtypes": [
            jnp.asarray([1, 2.5, 3e-5]).astype(dtype)
            for dtype in (jnp.float32, jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.int8, jnp.uint8, jnp.int4)
        ],
        "special": jnp.asarray([jnp.nan, jnp.inf, -0.0, 1e-45]),
        "flag": jnp.asarray([True, False]),
        "scalar": jnp.int32(2**31 - 1),
        "empty": jnp.zeros((0, 3)),
        "a/b %é": jnp.arange(5),
    }
    checkpoints.save(1, state, {}, wait=True)
    for like in (state, jax.eval_shape(lambda: state)):
        restored, _ = checkpoints.restore(1, like)
        assert bits(restored) == bits(state)
        assert jax.tree.structure(restored) == jax.tree.structure(state)


def test_memory_kinds_are_those_asked_for(checkpoints):
    host = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    state = {"moment": jax.device_put(jnp.arange(8.0), host), "w": jnp.arange(3.0)}
    checkpoints.save(1, state, {}, wait=True)
    restored, _ = checkpoints.restore(1, state)
    assert restored["moment"].sharding.memory_kind == "pinned_host"
    assert restored["w"].sharding.memory_kind == state["w"].sharding.memory_kind
    assert bits(restored) == bits(state)


def test_records_are_those_at_the_save(checkpoints):
    records = {"data": {"position": 3}, "text": "é", "none": None}
    checkpoints.save(1, {"x": jnp.ones(1)}, records)
    records["data"]["position"] = 4
    expected = {"data": {"position": 3}, "text": "é", "none": None}
    assert checkpoints.restore(1, {"x": jnp.ones(1)})[1] == expected
    assert checkpoints.records(1) == expected


def test_donating_right_after_the_save_does_not_change_what_is_saved(checkpoints):
    # 64 MiB of noise: the write is still going on while the buffers are overwritten.
    state = {"w": jax.random.normal(jax.random.key(0), (2**24,)), "count": jnp.int32(3)}
    expected = bits(state)
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0 + 7, tree), donate_argnums=0)
    checkpoints.save(1, state, {})
    assert checkpoints.steps() == [], "the save was over before the buffers were reused; make the state larger"
    state = jax.block_until_ready(overwrite(state))
    state = jax.block_until_ready(overwrite(state))
    checkpoints.wait()
    assert bits(checkpoints.restore(1, specs_of(state))[0]) == expected


def test_restored_arrays_are_donated_for_real(checkpoints):
    state = {f"w{i}": jnp.arange(float(size)) for i, size in enumerate((1, 3, 1000, 4096))}
    checkpoints.save(1, state, {}, wait=True)
    restored, _ = checkpoints.restore(1, specs_of(state))
    pointers = {name: leaf.unsafe_buffer_pointer() for name, leaf in restored.items()}
    updated = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)(restored)
    assert all(leaf.is_deleted() for leaf in restored.values())
    assert {name: leaf.unsafe_buffer_pointer() for name, leaf in updated.items()} == pointers


def test_a_failed_save_is_said_once_and_earlier_ones_stay(checkpoints, caplog):
    small, large = {"w": jnp.ones(4)}, {"w": jax.random.normal(jax.random.key(0), (2**20,))}
    checkpoints.save(1, small, {}, wait=True)
    with files_no_larger_than(2**20), caplog.at_level(logging.INFO):
        checkpoints.save(2, large, {})  # returns: the failure is in the background
        with pytest.raises(CheckpointError, match=r"checkpoint 2 could not be saved(.|\n)*hint: earlier checkpoints"):
            checkpoints.wait()
        checkpoints.save(3, large, {})
        with pytest.raises(CheckpointError, match="checkpoint 3 could not be saved"):
            checkpoints.save(4, small, {})
    assert [path.name for path in checkpoints.folder.iterdir()] == ["1"], "what was written of a failed save stays"
    assert not [record for record in caplog.records if "orbax" in record.pathname], "Orbax's tracebacks are shown"
    checkpoints.wait()
    checkpoints.save(5, large, {}, wait=True)
    assert checkpoints.steps() == [1, 5]
    assert bits(checkpoints.restore(5, large)[0]) == bits(large)


@pytest.mark.parametrize("records", [{"x": math.nan}, {"x": object()}, {"x": {1, 2}}])
def test_records_that_json_cannot_hold_are_an_error(checkpoints, records):
    with pytest.raises(CheckpointError, match="JSON"):
        checkpoints.save(1, {"x": jnp.ones(1)}, records)
    assert list(checkpoints.folder.iterdir()) == []


def test_a_state_of_anything_but_arrays_is_an_error(checkpoints):
    with pytest.raises(CheckpointError, match=r"2 other leaves: count, rate"):
        checkpoints.save(1, {"w": jnp.ones(1), "rate": 1e-3, "count": np.int32(1)}, {})
    with pytest.raises(CheckpointError, match=r"found twice: a\.b"):
        checkpoints.save(1, {"a": {"b": jnp.ones(1)}, "a.b": jnp.ones(1)}, {})


def test_a_kill_in_the_middle_leaves_the_one_before_and_is_swept(tmp_path):
    child = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        import jax
        from brim.training.checkpoint import Checkpoints
        checkpoints = Checkpoints(Path(sys.argv[1]), keep_last=2, keep_best=0)
        state = {"w": jax.random.normal(jax.random.key(0), (2**24,))}
        checkpoints.save(10, state, {}, wait=True)
        checkpoints.save(20, state, {})
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run([sys.executable, "-c", child, str(tmp_path)], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "saving.20"]
    reader = Checkpoints(tmp_path, keep_last=2, keep_best=0, writing=False)
    assert (reader.latest(), reader.incomplete()) == (10, {})
    assert (tmp_path / "saving.20").exists(), "a reader must not clean up behind a writer that may be alive"
    with pytest.raises(CheckpointError, match="reading"):
        reader.save(30, {}, {})
    reader.close()
    writer = Checkpoints(tmp_path, keep_last=2, keep_best=0)
    assert [path.name for path in tmp_path.iterdir()] == ["10"]
    expected = {"w": jax.random.normal(jax.random.key(0), (2**24,))}
    assert bits(writer.restore(10, expected)[0]) == bits(expected)
    writer.close()


def test_a_damaged_checkpoint_is_named_and_passed_over(tmp_path, caplog):
    writer = Checkpoints(tmp_path, keep_last=9, keep_best=1)
    for step in (10, 20, 30, 40):
        writer.save(step, {"w": jnp.arange(100.0)}, {}, loss=1 / step)
    writer.close()
    largest = max((tmp_path / "20" / "state").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    os.truncate(largest, largest.stat().st_size - 1)
    (tmp_path / "30" / "records.json").unlink()
    (tmp_path / "40" / "files.json").write_text("{")
    (tmp_path / "50").mkdir()
    reader = Checkpoints(tmp_path, keep_last=9, keep_best=1)
    assert (reader.steps(), reader.latest(), reader.best()) == ([10], 10, 10)
    reasons = reader.incomplete()
    assert f"{largest.name} has" in reasons[20]
    assert reasons[30] == "records.json is missing"
    assert "files.json cannot be read" in reasons[40]
    assert reasons[50] == "files.json is missing"
    assert all(f"checkpoint {step}" in caplog.text for step in (20, 30, 40, 50))
    with pytest.raises(CheckpointError, match=r"20.*has"):
        reader.restore(20, {"w": jnp.arange(100.0)})
    reader.save(30, {"w": jnp.arange(100.0)}, {}, wait=True)
    assert reader.steps() == [10, 30]
    reader.close()


def test_a_checkpoint_of_the_same_number_is_replaced(checkpoints):
    for value in (1.0, 2.0):
        checkpoints.save(7, {"w": jnp.full(3, value)}, {"value": value}, wait=True)
    restored, records = checkpoints.restore(7, {"w": jnp.zeros(3)})
    assert (restored["w"].tolist(), records) == ([2.0] * 3, {"value": 2.0})


def test_names_on_disk_are_those_of_the_state(checkpoints):
    state = model()
    checkpoints.save(1, state, {}, wait=True)
    saved = json.loads((checkpoints.folder / "1" / "records.json").read_text())
    assert list(saved["arrays"]) == path_names(state)


def test_an_unwritable_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write checkpoints"):
        Checkpoints(tmp_path / "file" / "checkpoints", keep_last=1, keep_best=1)
