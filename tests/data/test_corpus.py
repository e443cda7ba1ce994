from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brim.data import Corpus, DataSettings, batches, load_tokenizer, open_corpus, prepare
from brim.data import build as build_module
from brim.data.build import choose_held_out
from brim.errors import DataError

Write = Callable[[str, bytes | str], Path]


def corpus_of(path: Path, folder: Path | None = None, **options: Any) -> Corpus:
    settings = DataSettings(**{"paths": (str(path),), "held_out": 0.0, **options})
    return prepare(settings, folder or path.parent / "store")


def documents_of(corpus: Corpus, split: str = "train") -> list[str]:
    store = getattr(corpus, split)
    starts = [0, *store.document_ends[:-1].tolist()]
    return [
        corpus.tokenizer.decode(store.ids[start:end])
        for start, end in zip(starts, store.document_ends.tolist(), strict=True)
    ]


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "bpe"])
def test_text_comes_back_from_the_store(write: Write, tokenizer: str) -> None:
    texts = ["first é\r\ntext", "\ufeffsecond 😀 text\n", "third\u2029 text"]
    for number, text in enumerate(texts):
        write(f"texts ü/{number}.txt", text)
    corpus = corpus_of(write("texts ü/3.txt", "x").parent, tokenizer=tokenizer, vocabulary=300)
    assert documents_of(corpus) == ["first é\ntext", "second 😀 text\n", "third\u2029 text", "x"]
    end = corpus.tokenizer.end_of_document
    assert end == corpus.tokenizer.vocabulary_size - 1
    assert [corpus.train.ids[i - 1] for i in corpus.train.document_ends] == [end] * 4
    assert (corpus.train.ids == end).sum() == 4
    assert corpus.held_out.tokens == 0
    assert load_tokenizer(write("x", "").parent / "store").encode("text") == corpus.tokenizer.encode("text")


def test_da_s1_a_separator_makes_lines_documents(write: Write) -> None:
    path = write("lines.txt", bytes.fromhex("61 E2 80 A9 62 0A 63 0A"))
    assert documents_of(corpus_of(path, separator="\n")) == ["a\u2029b", "c"]


def test_da_s2_bad_bytes_stop_before_anything_is_written(write: Write, tmp_path: Path) -> None:
    write("t/a.txt", "fine\n")
    write("t/b.txt", b"it\x92s\nok\n")
    with pytest.raises(DataError, match=r"b\.txt is not UTF-8: byte 2"):
        corpus_of(tmp_path / "t")
    assert not (tmp_path / "store").exists()
    corpus = corpus_of(tmp_path / "t", bad_bytes="replace", separator="\n")
    assert documents_of(corpus) == ["fine", "it\ufffds", "ok"]
    assert corpus.manifest["replaced_bytes"] == 1
    assert any("replaced 1 bytes" in warning for warning in corpus.warnings)


def test_da_s8_markers_in_the_text_end_no_document(write: Write) -> None:
    path = write("t.txt", "<|endoftext|>")
    for tokenizer in ("bytes", "characters", "bpe"):
        corpus = corpus_of(path, tokenizer=tokenizer, vocabulary=300)
        assert (corpus.train.ids == corpus.tokenizer.end_of_document).sum() == 1
        assert corpus.train.documents == 1
        (batch,) = batches(corpus.train, rows=1, length=corpus.train.tokens, seed=0, epochs=1, pack=True)
        assert batch["documents"].max() == 1


def test_da_s12_empty_documents_are_passed_over_and_counted(write: Write) -> None:
    corpus = corpus_of(write("t.txt", "a b||   |c"), separator="|")
    assert documents_of(corpus) == ["a b", "c"]
    assert (corpus.manifest["empty_documents"], corpus.manifest["blank_documents"]) == (1, 1)
    end = corpus.tokenizer.end_of_document
    pairs = zip(corpus.train.ids[:-1], corpus.train.ids[1:], strict=True)
    assert not any(a == b == end for a, b in pairs)
    assert any("1 empty" in warning for warning in corpus.warnings)


def test_da_s12_empty_files_are_named(write: Write, tmp_path: Path) -> None:
    empty = write("t/empty.txt", "")
    with pytest.raises(DataError, match=r"empty\.txt.*1 have 0 bytes"):
        corpus_of(empty)
    write("t/blank.txt", " \n\u2029\n")
    with pytest.raises(DataError, match="no text in 2 files"):
        corpus_of(tmp_path / "t")
    write("t/text.txt", "text")
    corpus = corpus_of(tmp_path / "t")
    assert documents_of(corpus) == ["text"]
    assert any("empty.txt" in warning for warning in corpus.warnings)


def test_whole_documents_are_held_out(write: Write, tmp_path: Path) -> None:
    for number in range(40):
        write(f"t/{number:02}.txt", f"document {number:02}")
    corpus = corpus_of(tmp_path / "t", held_out=0.1)
    train, held_out = documents_of(corpus), documents_of(corpus, "held_out")
    assert len(held_out) == 4
    assert sorted(train + held_out) == [f"document {number:02}" for number in range(40)]
    assert train == sorted(train)
    assert documents_of(corpus_of(tmp_path / "t", tmp_path / "other", held_out=0.1), "held_out") == held_out
    # Spread over the corpus, not its end.
    assert held_out != [f"document {number}" for number in range(36, 40)]


@pytest.mark.parametrize(("documents", "share", "expected"), [(2, 0.05, 1), (2, 0.99, 1), (100, 0.05, 5), (10, 0.0, 0)])
def test_neither_split_is_left_empty(documents: int, share: float, expected: int) -> None:
    assert choose_held_out(documents, DataSettings(held_out=share)).sum() == expected


def test_one_document_cannot_be_split_by_document(write: Write) -> None:
    path = write("one.txt", "text")
    with pytest.raises(DataError, match="1 document cannot be split") as caught:
        corpus_of(path, held_out=0.1)
    assert "tail" in caught.value.hint


@pytest.mark.parametrize("held_out", [0.1, 0.05, 0.5, 0.0])
def test_a_tail_split_is_that_of_nanogpt(write: Write, held_out: float) -> None:
    text = "To be, or not to be: that is the question.\n" * 23
    corpus = corpus_of(write("input.txt", text), tokenizer="characters", split="tail", held_out=held_out)
    # Its prepare.py for single characters, in four lines.
    chars = sorted(set(text))
    numbers = {character: i for i, character in enumerate(chars)}
    n = int((1 - held_out) * len(text))
    expected = [numbers[character] for character in text]
    assert corpus.train.ids.tolist() == expected[:n]
    assert corpus.held_out.ids.tolist() == expected[n:]
    assert corpus.tokenizer.vocabulary_size == len(chars)
    assert corpus.tokenizer.end_of_document is None


def test_a_tail_split_of_several_files_is_one_stream(write: Write, tmp_path: Path) -> None:
    for name, text in (("a", "aaaa"), ("b", "bbbbbb"), ("c", "cccccccccc")):
        write(f"t/{name}.txt", text)
    corpus = corpus_of(tmp_path / "t", split="tail", held_out=0.25)
    assert documents_of(corpus) == ["aaaa", "bbbbbb", "ccccc"]
    assert documents_of(corpus, "held_out") == ["ccccc"]
    assert corpus.tokenizer.vocabulary_size == 256


def test_bpe_is_learnt_on_training_text_only(write: Write, tmp_path: Path) -> None:
    settings = DataSettings(held_out=0.1)
    (held_out,) = choose_held_out(10, settings).nonzero()[0]
    for number in range(10):
        write(f"t/{number}.txt", ("zyzzyva " if number == held_out else "the cat ") * 50)
    corpus = corpus_of(tmp_path / "t", held_out=0.1, tokenizer="bpe", vocabulary=300)
    assert "zyzzyva" in documents_of(corpus, "held_out")[0]
    assert len(corpus.tokenizer.encode("the cat")) <= 3
    assert len(corpus.tokenizer.encode("zyzzyva")) == 7
    tail = corpus_of(write("tail.txt", "the cat " * 90 + "zyzzyva " * 10), split="tail", held_out=0.1, tokenizer="bpe")
    assert len(tail.tokenizer.encode("zyzzyva")) == 7
    assert any("too small for 8192" in warning for warning in tail.warnings)


def test_an_unchanged_corpus_is_used_again(write: Write, tmp_path: Path) -> None:
    path = write("t/a.txt", "some text")
    first = corpus_of(path)
    assert "no prepared data" in first.rebuilt
    stamp = (path.parent / "store/manifest.json").stat().st_mtime_ns
    again = corpus_of(path)
    assert again.rebuilt == ""
    assert again.train.sha256 == first.train.sha256
    os.utime(path)
    assert corpus_of(path).rebuilt == ""
    # Packing and sampling only decide how the tokens are read.
    assert corpus_of(path, pack=False, sampling="random", vocabulary=999).rebuilt == ""
    assert (path.parent / "store/manifest.json").stat().st_mtime_ns == stamp


def test_any_change_of_a_source_makes_the_store_anew(write: Write, tmp_path: Path) -> None:
    path = write("t/a.txt", "some text")
    corpus_of(tmp_path / "t", tmp_path / "store")
    times = path.stat()
    path.write_text("same size")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    changed = corpus_of(tmp_path / "t", tmp_path / "store")
    assert "a.txt" in changed.rebuilt
    assert documents_of(changed) == ["same size"]
    write("t/b.txt", "more")
    assert "b.txt" in corpus_of(tmp_path / "t", tmp_path / "store").rebuilt
    path.unlink()
    gone = corpus_of(tmp_path / "t", tmp_path / "store")
    assert "a.txt" in gone.rebuilt
    assert documents_of(gone) == ["more"]


@pytest.mark.parametrize(
    "change",
    [{"separator": "\n"}, {"tokenizer": "characters"}, {"split": "tail"}, {"bad_bytes": "replace"}, {"held_out": 0.4}],
)
def test_any_change_of_a_setting_behind_the_store_makes_it_anew(write: Write, change: dict[str, Any]) -> None:
    write("t/a.txt", "some\ntext\n")
    path = write("t/b.txt", "x\n").parent
    corpus_of(path)
    (name,) = change
    assert f"data.{name}" in corpus_of(path, **change).rebuilt


def test_a_settled_file_is_not_read_again(write: Write) -> None:
    path = write("a.txt", "some text")
    corpus_of(path)
    manifest_path = path.parent / "store/manifest.json"
    manifest = json.loads(manifest_path.read_text())
    manifest["sources"][0]["sha256"] = "0" * 64
    manifest_path.write_text(json.dumps(manifest))
    # Just written: the times prove nothing yet, so it is read, and the hash is found to differ.
    assert "a.txt" in corpus_of(path).rebuilt
    manifest = json.loads(manifest_path.read_text())
    manifest["sources"][0]["read_at_ns"] += 10**10
    manifest["sources"][0]["sha256"] = "0" * 64
    manifest_path.write_text(json.dumps(manifest))
    assert corpus_of(path).rebuilt == ""
    # Another content of the same size under the same time of modification: the time of change gives it away.
    modified_ns = path.stat().st_mtime_ns
    path.write_text("same size")
    os.utime(path, ns=(modified_ns, modified_ns))
    assert "a.txt" in corpus_of(path).rebuilt


def test_a_damaged_store_is_made_anew(write: Write, tmp_path: Path) -> None:
    path = write("a.txt", "some text")
    store = tmp_path / "store"

    def damage_tokens() -> None:
        (tokens,) = store.glob("tokens-*/train.tokens")
        tokens.write_bytes(b"x")

    def lose_tokenizer() -> None:
        (vocabulary,) = store.glob("tokens-*/vocabulary.json")
        vocabulary.unlink()

    def break_manifest() -> None:
        (store / "manifest.json").write_text("{")

    def future_format() -> None:
        (store / "manifest.json").write_text('{"format": 99}')

    corpus_of(path)
    for damage in (damage_tokens, lose_tokenizer, break_manifest, future_format):
        damage()
        with pytest.raises(DataError):
            open_corpus(store)
        corpus = corpus_of(path)
        assert corpus.rebuilt
        assert documents_of(corpus) == ["some text"]
        assert len(list(store.glob("tokens-*"))) == 1


def test_a_store_opens_without_its_sources(write: Write, tmp_path: Path) -> None:
    path = write("t/a.txt", "some text")
    made = corpus_of(path, tmp_path / "store")
    shutil.rmtree(tmp_path / "t")
    assert open_corpus(tmp_path / "store").train.sha256 == made.train.sha256
    with pytest.raises(DataError, match="no prepared data"):
        open_corpus(tmp_path / "nowhere")


def test_a_failed_build_leaves_the_old_store(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("a.txt", "some text")
    corpus_of(path)
    path.write_text("other text")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("_write_splits", "write_manifest"):
        with monkeypatch.context() as patch:
            patch.setattr(build_module, name, fail)
            with pytest.raises(DataError, match="No space left") as caught:
                corpus_of(path)
            assert "data.store" in caught.value.hint
        assert documents_of(open_corpus(tmp_path / "store")) == ["some text"]
        assert not list((tmp_path / "store").glob("building-*"))
    assert documents_of(corpus_of(path)) == ["other text"]
    assert len(list((tmp_path / "store").iterdir())) == 2


KILLED = """
import os, sys
from pathlib import Path
from brim.data import DataSettings, prepare
import brim.data.build as build
def stop(*_, **__): os._exit(9)
setattr(build, sys.argv[1], stop)
prepare(DataSettings(paths=(sys.argv[2],), held_out=0.0), Path(sys.argv[3]))
"""


def test_a_killed_build_leaves_the_old_store_and_is_cleaned_up(write: Write, tmp_path: Path) -> None:
    path = write("a.txt", "some text")
    corpus_of(path)
    path.write_text("other text")
    for place in ("save_tokenizer", "sync_folder", "write_manifest", "_clean_up"):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, place, str(path), str(tmp_path / "store")], timeout=120, check=False
        )
        assert done.returncode == 9
        expected = ["other text"] if place == "_clean_up" else ["some text"]
        assert documents_of(open_corpus(tmp_path / "store")) == expected
    left = list((tmp_path / "store").glob("building-*"))
    assert left
    for folder in left:
        for file in [*folder.iterdir(), folder]:
            os.utime(file, (time.time() - 7200, time.time() - 7200))
    path.write_text("third text")
    assert documents_of(corpus_of(path)) == ["third text"]
    assert len(list((tmp_path / "store").iterdir())) == 2


def test_nothing_of_the_users_is_removed_from_the_folder_of_a_store(write: Write, tmp_path: Path) -> None:
    path = write("a.txt", "some text")
    corpus_of(path)
    store = tmp_path / "store"
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "vocabulary.json").write_text("mine")
    mine = [
        *("tokens-mine/notes.txt", "tokens-0123456789ab/vocabulary.json/x", "tokens-0123456789AB/vocabulary.json"),
        *("building-blocks/train.tokens", "building-abcd1234/notes.txt", "building-abcd12345/train.tokens"),
        *("building-notes.txt", "tokens-abcdefabcdef"),
    ]
    for name in mine:
        write(f"store/{name}", "mine")
    (store / "tokens-111111111111").symlink_to(elsewhere)
    (store / "tokens-222222222222").mkdir()
    (store / "tokens-222222222222" / "my notes").mkdir()
    old = time.time() - 7200
    for found in sorted(store.rglob("*"), reverse=True):
        os.utime(found, (old, old), follow_symlinks=False)
    path.write_text("other text")
    assert documents_of(corpus_of(path)) == ["other text"]
    assert all((store / name).read_text() == "mine" for name in mine)
    assert (elsewhere / "vocabulary.json").read_text() == "mine"
    assert (store / "tokens-222222222222" / "my notes").is_dir()
    left = {found.name for found in store.iterdir()}
    made = open_corpus(store).manifest["tokens_folder"]
    assert left == {*(name.split("/")[0] for name in mine), "tokens-111111111111", "tokens-222222222222", made} | {
        "manifest.json"
    }


def test_a_source_that_changes_while_it_is_read_is_noticed(write: Write, tmp_path: Path) -> None:
    path = write("a.txt", "some text")

    def progress(what: str, share: float) -> None:
        if what == "reading the text" and share == 1.0:
            path.write_text("some tent")

    settings = DataSettings(paths=(str(path),), held_out=0.0)
    with pytest.raises(DataError, match=r"a\.txt changed while it was read"):
        prepare(settings, tmp_path / "store", progress=progress)
    assert not list((tmp_path / "store").iterdir())


def test_progress_goes_from_0_to_1_in_named_phases(write: Write, tmp_path: Path) -> None:
    calls: list[tuple[str, float]] = []
    for name in ("a", "b"):
        write(f"t/{name}.txt", "word " * 1000)
    settings = DataSettings(paths=(str(tmp_path / "t"),), tokenizer="bpe", vocabulary=300)
    prepare(settings, tmp_path / "store", progress=lambda what, share: calls.append((what, share)))
    assert list(dict(calls)) == ["reading the text", "learning the vocabulary", "tokenising"]
    for phase in dict(calls):
        shares = [share for what, share in calls if what == phase]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0


def test_a_long_document_is_streamed_in_pieces(write: Write) -> None:
    text = "".join(f"line {number} of a long text\n" for number in range(60_000))
    corpus = corpus_of(write("long.txt", text))
    assert corpus.train.documents == 1
    assert corpus.train.ids[:-1].astype("u1").tobytes() == text.encode()


def test_importing_the_settings_is_cheap() -> None:
    program = """
import sys
from brim.data import DataSettings
import brim.data
assert sorted(brim.data.__all__, key=str.lower) == sorted(dir(brim.data), key=str.lower)
assert not {"jax", "grain", "tokenizers", "numpy"} & set(sys.modules)
for name in brim.data.__all__: getattr(brim.data, name)
"""
    subprocess.run([sys.executable, "-c", program], timeout=120, check=True)
