import contextlib

import grpc
import pytest

from blockdraft_runtime.status import ServiceError
from blockdraft_server.admission import Admission


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_holds_capacity_and_queue_and_no_more() -> None:
    admission = Admission(max_waiting=1, capacity=lambda: 2)
    with admission.admit(), admission.admit():
        with admission.admit():
            assert admission.admitted == 3
            with pytest.raises(ServiceError) as caught, admission.admit():
                pass
        with admission.admit():
            pass
    assert admission.admitted == 0
    error = caught.value
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert error.metadata == {"requests": "3", "limit": "3"}


def test_each_of_several_servers_has_its_share() -> None:
    admission = Admission(max_waiting=3, capacity=lambda: 2, servers=2)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(admission.admit())
        with pytest.raises(ServiceError) as caught:
            stack.enter_context(admission.admit())
    assert caught.value.metadata["limit"] == "3"


def test_a_place_is_free_again_after_an_error() -> None:
    admission = Admission(max_waiting=0, capacity=lambda: 1)
    with pytest.raises(RuntimeError), admission.admit():
        raise RuntimeError
    assert admission.admitted == 0


def test_refuses_without_a_verifier_and_while_draining() -> None:
    capacity = [0]
    admission = Admission(max_waiting=5, capacity=lambda: capacity[0])
    with pytest.raises(ServiceError) as caught, admission.admit():
        pass
    assert caught.value.reason == "VERIFIER_UNAVAILABLE"
    capacity[0] = 1
    with admission.admit():
        admission.drain()
        with pytest.raises(ServiceError) as caught, admission.admit():
            pass
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")


def test_tells_when_the_next_place_is_likely_free() -> None:
    clock = Clock()
    admission = Admission(max_waiting=0, capacity=lambda: 1, clock=clock)

    def retry_after() -> float | None:
        with admission.admit(), pytest.raises(ServiceError) as caught, admission.admit():
            pass
        return caught.value.retry_after_seconds

    assert retry_after() == 1.0
    for _ in range(100):
        clock.now += 4.0
        with admission.admit():
            pass
    assert retry_after() == pytest.approx(4.0, rel=0.01)
    for _ in range(200):
        with admission.admit():
            pass
    assert retry_after() == 0.1
