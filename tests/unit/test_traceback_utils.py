"""Errors without their frames."""

from __future__ import annotations

import weakref

from torchwise.errors import pop_traceback


class Large: ...


def test_what_an_error_and_those_behind_it_hold_is_let_go_and_what_they_told_is_kept() -> None:
    held = []

    def inner() -> None:
        large = Large()
        held.append(weakref.ref(large))
        raise ValueError("inside")

    def middle() -> None:
        large = Large()
        held.append(weakref.ref(large))
        try:
            inner()
        except ValueError as error:
            raise MemoryError("no memory") from error

    try:
        middle()
    except MemoryError as error:
        assert all(reference() is not None for reference in held)
        told = pop_traceback(error)
        assert all(reference() is None for reference in held)
    assert "in inner" in told
    assert told.index("ValueError: inside") < told.index("MemoryError: no memory")


def test_errors_in_a_circle_end() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert "one" in pop_traceback(one)
    assert (one.__cause__, other.__cause__) == (None, None)
