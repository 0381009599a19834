"""Some hundreds of mutated files of every kind that is read. `tests/fuzz/run.py` tries as many as one likes."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

from torchwise.errors import InputError
from torchwise.plan import Plan

FUZZ = Path(__file__).parents[1] / "fuzz"
EACH = 150


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    """Return the program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(FUZZ), *sys.path])
        import run

        return run


def test_a_mutated_file_is_read_whole_or_refused_in_our_own_words(fuzz: ModuleType, tmp_path: Path) -> None:
    kinds = fuzz.kinds(tmp_path)
    others = [sample for kind in kinds for sample in kind.samples]
    found = {kind.name: fuzz.fuzz(kind, others, EACH, 1) for kind in kinds}
    assert {name: one.wrong for name, one in found.items() if one.wrong} == {}
    for name, one in found.items():
        assert one.read > 5, f"hardly any {name} was read, so that nothing is known of what was"
        assert one.refused > 5, f"hardly any {name} was refused"


def test_every_sample_is_read_as_it_is(fuzz: ModuleType, tmp_path: Path) -> None:
    for kind in fuzz.kinds(tmp_path):
        for sample in kind.samples:
            assert fuzz.judge(kind, sample) == "", kind.name
            kind.read(kind.written(kind.plain(sample)))


def test_the_program_tells_what_it_looks_for(fuzz: ModuleType, tmp_path: Path) -> None:
    kind = fuzz.kinds(tmp_path)[0]
    text = Plan(backend="inductor", options=(("freezing", True),)).to_json().encode()

    def judge_plan(read: object, told: object) -> str:
        return str(fuzz.judge(fuzz.Kind("plan", (text,), read, told), text))

    assert judge_plan(kind.read, kind.told) == ""
    assert judge_plan(kind.read, lambda plan: {"schema": "torchwise.plan/1"}) == "it was read, but $.backend is lost"
    assert "options.freezing was True, and is 1" in judge_plan(
        kind.read, lambda plan: {**kind.told(plan), "options": {"freezing": 1}}
    )

    def raw(_data: bytes) -> None:
        raise UnicodeDecodeError("utf-8", b"", 0, 1, "it is no error of ours")

    def empty(_data: bytes) -> None:
        raise InputError(" ")

    for read, said in ((raw, "UnicodeDecodeError"), (empty, "an empty message")):
        found = fuzz.fuzz(fuzz.Kind("plan", (text,), read, None), [], 3, 0)
        assert [wrong.startswith(said) for wrong in found.wrong] == [True] * 3


def test_one_seed_mutates_alike_everywhere(fuzz: ModuleType, tmp_path: Path) -> None:
    kind = fuzz.kinds(tmp_path)[1]
    plain = [kind.plain(sample) for sample in kind.samples]
    once, again = (
        [fuzz.mutate_file(kind, plain, [], draw) for _ in range(50)]
        for draw in (random.Random("7"), random.Random("7"))
    )
    assert once == again
    assert len(set(once)) > 40
