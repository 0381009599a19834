"""A circuit breaker: open after some failures, half-open for one call, closed again by a success."""

from __future__ import annotations

import pytest

from torchwise.runtime.circuit_breaker import MAX_WAIT_S, CircuitBreaker

pytestmark = pytest.mark.usefixtures("way")  # calls are taken in Python, and by compiled checks


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def circuit(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(failures=3, first_wait_s=60.0, clock=clock)


def open_circuit(circuit: CircuitBreaker) -> CircuitBreaker:
    assert [circuit.record_failure() for _ in range(3)] == [False, False, True]
    return circuit


def test_it_opens_after_as_many_failures_and_lets_nothing_through(circuit: CircuitBreaker, clock: Clock) -> None:
    assert circuit.admits()
    open_circuit(circuit)
    assert circuit.is_open
    assert circuit.wait_s == 60.0
    clock.now += 59.9
    assert not circuit.admits()


def test_half_open_it_lets_one_call_through_and_the_others_wait(circuit: CircuitBreaker, clock: Clock) -> None:
    open_circuit(circuit)
    clock.now += 60.0
    assert circuit.admits()
    assert not circuit.admits()
    assert circuit.is_open


def test_a_success_closes_it_and_forgets_what_was(circuit: CircuitBreaker, clock: Clock) -> None:
    open_circuit(circuit)
    clock.now += 60.0
    assert circuit.admits()
    circuit.record_success()
    assert not circuit.is_open
    assert circuit.wait_s == 0.0
    open_circuit(circuit)
    assert circuit.wait_s == 60.0


def test_each_retry_that_fails_doubles_the_wait_up_to_an_hour(circuit: CircuitBreaker, clock: Clock) -> None:
    open_circuit(circuit)
    waits = []
    for _ in range(8):
        clock.now += circuit.wait_s
        assert circuit.admits()
        assert circuit.record_failure()
        waits.append(circuit.wait_s)
    assert waits == [120, 240, 480, 960, 1920, MAX_WAIT_S, MAX_WAIT_S, MAX_WAIT_S]


def test_a_first_wait_beyond_an_hour_stays(clock: Clock) -> None:
    circuit = CircuitBreaker(failures=1, first_wait_s=2 * MAX_WAIT_S, clock=clock)
    assert circuit.record_failure()
    clock.now += 2 * MAX_WAIT_S
    assert circuit.admits()
    assert circuit.record_failure()
    assert circuit.wait_s == 2 * MAX_WAIT_S


def test_calls_that_were_under_way_when_it_opened_change_nothing(circuit: CircuitBreaker, clock: Clock) -> None:
    open_circuit(circuit)
    assert [circuit.record_failure() for _ in range(5)] == [False] * 5
    assert circuit.wait_s == 60.0
    clock.now += 60.0
    assert circuit.admits()
    assert [circuit.record_failure() for _ in range(3)] == [True, False, False]
    assert circuit.wait_s == 120.0


def test_a_success_of_another_thread_amid_a_question_is_no_error(circuit: CircuitBreaker) -> None:
    for ask, expected in ((circuit.would_admit, True), (lambda: circuit.wait_s, 59.0)):
        open_circuit(circuit)
        since = circuit._clock()
        circuit._clock = lambda since=since: circuit.record_success() or since + 1.0  # type: ignore[misc]
        assert ask() in (expected, False)
        circuit._clock = lambda since=since: since
