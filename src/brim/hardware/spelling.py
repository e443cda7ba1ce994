"""How people spell the names of devices: when two spellings are one name, and which name a wrong one was meant to be.

Two forms of a name are compared. Its words and numbers in any order, without the maker's brands: `RTX 4090`, `rtx4090`
and `NVIDIA GeForce RTX 4090` are one. And its parts run together: `4070tisuper`, `a10080gb`.

The number of a card is its name: a 4070 Ti SUPER is nothing that a 4080 SUPER was meant to be, nor an A100 an H100.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from brim.errors import nearest

_BRANDS = {"nvidia", "geforce", "tesla", "quadro", "rtx", "google", "cloud", "tpu", "gpu", "gb", "gib"}
_BRAND_IN_A_WORD = re.compile(r"nvidia|geforce|tesla|quadro|google|cloud|rtx|tpu|gpu|(?<=\d)gi?b")
_WRITTEN_OTHERWISE = (
    (re.compile(r"\bpci[ -]?e(xpress)?\b"), "pcie"),
    (re.compile(r"sxm[2-6]\b"), "sxm"),  # the generation of the socket says nothing that the card does not
    (re.compile(r"(?<![a-z\d])(\d{1,3})[ -]?g(?![a-z])"), r"\1gb"),  # not the G of an A10G
)
_OTHER_CHIPS = {"laptop", "mobile", "notebook", "max"}
"""Words for a smaller chip under the name of a card: the card is not what was meant."""
_MODEL = re.compile(r"[a-z]*\d+")


def words(name: str) -> tuple[str, ...]:
    """The words and numbers of a name, sorted, without brands."""
    return tuple(sorted(word for word in re.findall(r"[a-z]+|[0-9]+", name.lower()) if word not in _BRANDS))


def usual(name: str) -> str:
    """A name in lower case, with what is written in several ways as it is in the tables.

    >>> usual("A100 SXM4 80G"), usual("a100 PCI-E"), usual("A10G")
    ('a100 sxm 80gb', 'a100 pcie', 'a10g')
    """
    name = name.lower()
    for pattern, written in _WRITTEN_OTHERWISE:
        name = pattern.sub(written, name)
    return name


def run_together(name: str) -> str:
    """A name without brands and separators, but for those between two numbers.

    >>> run_together("RTX 4070-TiSUPER"), run_together("a100 80gb")
    ('4070tisuper', 'a100 80')
    """
    return _joined(_parts(name))


def all_run_together(name: str) -> Iterator[str]:
    """Every way to run the parts of a known name together."""
    for parts in itertools.permutations(_parts(name)):
        yield _joined(parts)
        yield "".join(parts)


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a wrong one was probably meant to be; None where it looks like that of another device."""
    if not _OTHER_CHIPS.isdisjoint(words(name)):
        return None
    known = list(known)
    typed = re.sub(r"(?<=\d)o|o(?=\d)", "0", usual(name).strip())
    models = set(_models(typed))
    if not models:
        return nearest(typed, [one for one in known if not _models(one)])
    if same := [one for one in known if _models(one)[:1] and _models(one)[0] in models]:
        return max(same, key=lambda one: difflib.SequenceMatcher(None, one, re.sub(r"[\s_]+", "-", typed)).ratio())
    return nearest(typed, [one for one in known if any(_is_slip(one, model) for model in models)])


def _parts(name: str) -> list[str]:
    found = (_BRAND_IN_A_WORD.sub("", part) for part in re.findall(r"[a-z0-9]+", name.lower()))
    return [part for part in found if part and part not in _BRANDS]


def _joined(parts: Sequence[str]) -> str:
    """Parts run together; `50 90` is not made a 5090."""
    return re.sub(r"(?<!\d) | (?!\d)", "", " ".join(parts))


def _models(name: str) -> list[str]:
    """The numbers of a name, each with the letters before it: the first names the card, another may be a size."""
    return [model for part in _parts(name) for model in _MODEL.findall(part)]


def _is_slip(known: str, model: str) -> bool:
    """Whether a model is that of a known name but for one character too many or too few, or two that changed places."""
    own = next(iter(_models(known)), "")
    short, long = sorted((own, model), key=len)
    one_more = len(long) == len(short) + 1 and any(long[:i] + long[i + 1 :] == short for i in range(len(long)))
    return one_more or (len(own) == len(model) and sorted(own) == sorted(model))
