"""Text to plain data, strictly: refused text is named with its place, and its file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from torchwise import parsing
from torchwise.errors import InputError, PlanError
from torchwise.parsing import parse_json, parse_toml

DEEP = 100_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "it is empty, but must be JSON"),
        (b" \n", "it is empty, but must be JSON"),
        (b"{", "it is no JSON: Expecting property name .* at line 1, column 2"),
        (b'{"a": 1}\n}', "it is no JSON: Extra data at line 2, column 1"),
        (b'{"a": [1, {"b": 1, "b": 2}]}', r"\$\.a\[1\] has the key 'b' twice"),
        (b'{"": 1, "": 2}', r"\$ has the key '' twice"),
        (b'{"a": {"b": NaN}}', r"\$\.a\.b is NaN, but must be a finite number"),
        (b'{"a": [0, -Infinity]}', r"\$\.a\[1\] is -Infinity, but must be a finite number"),
        (b'{"a": 1e400}', r"\$\.a is 1e400, but must be a finite number"),
        (b'{"a": ' + b"9" * 5000 + b"}", r"\$\.a is 9{20}…, but must be a finite number"),
        (b'{"a": NaN, "b": }', "it is no JSON: Expecting value at line 1, column 17"),
        (b"\xef\xbb\xbf{}", "it begins with a byte order mark, but must be UTF-8 without one"),
        ("{}".encode("utf-16"), "it begins with a byte order mark"),
        ("{}".encode("utf-16-le"), "it is no JSON"),
        (b'{"a":\n "\xff"}', "it is not UTF-8: line 2 has the byte 0xff at its byte 3"),
        (b'{"a": "\\ud800"}', r"\$\.a has half a character"),
        (b'{"a": {"\\udc00": 1}}', r"\$\.a has half a character"),
        ('{"a": "\ud800"}', r"\$\.a has half a character"),
        (b"[" * DEEP, "it is nested too deeply"),
        (b'{"a":' * DEEP, "it is nested too deeply"),
    ],
)
def test_json_that_is_refused(text: str | bytes, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        parse_json(text)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a = ", "it is no TOML: Invalid value"),
        (b"a = 1\na = 2", "it is no TOML: Cannot overwrite a value"),
        (b"a = nan", "it has an invalid number: nan is not finite"),
        (b"a = [1.0, -inf]", "-inf is not finite"),
        (b"a = 1e999", "1e999 is not finite"),
        (b"a = " + b"9" * 5000, "it has an invalid number"),
        (b"\xef\xbb\xbfa = 1", "it begins with a byte order mark"),
        (b"# \xc3\xa9\na = '\xff'", "it is not UTF-8: line 2 has the byte 0xff at its byte 6"),
        (b"a = " + b"[" * DEEP, "it is nested too deeply"),
    ],
)
def test_toml_that_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_toml(text)


@pytest.mark.parametrize("data", ['{"a": [1, 2.5, null, true, "é\\u00e9\\ud83d\\ude00"], "b": {}}', "[]", "3", '"x"'])
def test_json_that_is_read(data: str) -> None:
    import json

    assert parse_json(data) == parse_json(data.encode()) == json.loads(data)


def test_what_a_store_or_a_lock_holds_may_be_without_bounds() -> None:
    found = parse_json('{"a": [NaN, Infinity, -Infinity]}', constants=True)["a"]
    assert (math.isnan(found[0]), found[1:]) == (True, [math.inf, -math.inf])
    assert parse_toml("a = inf", constants=True) == {"a": math.inf}


def test_a_deep_place_is_named_in_short() -> None:
    with pytest.raises(InputError) as refused:
        parse_json("[" * 300 + "NaN" + "]" * 300)
    assert str(refused.value).startswith("$[0][0]")
    assert len(str(refused.value)) < 400


def test_a_file_is_named_whatever_is_wrong_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.json"
    for name in (tmp_path / "none.json", tmp_path, f"{tmp_path}/a\0b"):
        with pytest.raises(InputError, match=r"cannot be read: .*"):
            parsing.read(name, parse_json)
    file.write_text("{")
    with pytest.raises(InputError, match=r"a\.json: it is no JSON"):
        parsing.read(file, parse_json)
    file.write_text("{}")
    assert parsing.read(file, parse_json) == {}
    monkeypatch.setattr(parsing, "MAX_BYTES", 1)
    with pytest.raises(InputError, match=r"a\.json has more than 1 bytes, the maximum size"):
        parsing.read(file, parse_json)


def test_an_error_keeps_its_class_and_is_never_long(tmp_path: Path) -> None:
    def refuse(_text: bytes) -> Any:
        raise PlanError(f"plan is {'x' * 10**6}, but must be one")

    (tmp_path / "a.json").touch()
    with pytest.raises(PlanError) as refused:
        parsing.read(tmp_path / "a.json", refuse)
    assert str(refused.value).endswith("xxx, but must be one")
    assert len(str(refused.value)) < 1000
