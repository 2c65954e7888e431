import contextlib

import grpc
import pytest

from blockdraft_runtime.status import ServiceError
from blockdraft_server.admission import Admission
from blockdraft_server.keys import EVERYONE, ApiKeys, Tenant, parse_keys


def refusal(admission: Admission, tenant: Tenant = EVERYONE, **more: bool) -> ServiceError:
    with pytest.raises(ServiceError) as caught, admission.admit(tenant, **more):
        pass
    return caught.value


@pytest.mark.parametrize(("max_waiting", "servers"), [(1, 1), (3, 2)])
def test_holds_capacity_and_queue_or_a_share_of_them_and_no_more(
    max_waiting: int, servers: int
) -> None:
    admission = Admission(max_waiting, capacity=lambda: 2, servers=servers)
    with admission.admit(EVERYONE), admission.admit(EVERYONE):
        with admission.admit(EVERYONE):
            assert admission.admitted == 3
            error = refusal(admission)
        with pytest.raises(RuntimeError), admission.admit(EVERYONE):
            raise RuntimeError
    assert admission.admitted == 0
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert error.metadata == {"requests": "3", "limit": "3"}


def test_refuses_without_a_verifier_and_while_draining() -> None:
    capacity = [0]
    admission = Admission(max_waiting=5, capacity=lambda: capacity[0])
    assert refusal(admission).reason == "VERIFIER_UNAVAILABLE"
    capacity[0] = 1
    with admission.admit(EVERYONE):
        admission.drain()
        error = refusal(admission)
    assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")


def test_tells_when_the_next_place_is_likely_free() -> None:
    now = 0.0
    admission = Admission(max_waiting=0, capacity=lambda: 1, clock=lambda: now)

    def retry_after() -> float | None:
        with admission.admit(EVERYONE):
            return refusal(admission).retry_after_seconds

    assert retry_after() == 1.0
    for _ in range(100):
        now += 4.0
        with admission.admit(EVERYONE):
            pass
    assert retry_after() == pytest.approx(4.0, rel=0.01)
    for _ in range(200):
        with admission.admit(EVERYONE):
            pass
    assert retry_after() == 0.1


def test_a_tenant_holds_as_many_requests_as_it_may() -> None:
    admission = Admission(max_waiting=5, capacity=lambda: 5)
    acme, beta = Tenant("acme", b"a", max_requests=2), Tenant("beta", b"b")
    with admission.admit(acme), admission.admit(acme):
        error = refusal(admission, acme)
        with admission.admit(beta):
            assert admission.admitted == 3
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TENANT_LIMIT")
    assert error.metadata == {"limit": "max-requests", "allowed": "2", "held": "2"}
    assert error.retry_after_seconds is not None
    with admission.admit(acme):
        pass


def test_a_tenant_holds_as_many_tokens_as_it_may() -> None:
    admission = Admission(max_waiting=5, capacity=lambda: 5)
    acme, beta = Tenant("acme", b"a", max_tokens=100), Tenant("beta", b"b")
    with admission.admit(acme) as first, admission.admit(beta) as other:
        first(60)
        other(1000)
        with pytest.raises(ServiceError) as caught, admission.admit(acme) as second:
            second(41)
        # What a request gives back while others are held is there for the next one.
        for _ in range(2):
            with admission.admit(acme) as third:
                third(40)
    error = caught.value
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TENANT_LIMIT")
    expected = {"limit": "max-tokens", "allowed": "100", "tokens": "41", "held": "60"}
    assert error.metadata == expected
    assert error.retry_after_seconds is not None
    # All was given back. What never fits is not worth another try.
    with admission.admit(acme) as place:
        with pytest.raises(ServiceError) as caught:
            place(101)
        place(100)
    assert caught.value.retry_after_seconds is None


def test_limits_may_change_while_requests_are_held() -> None:
    admission = Admission(max_waiting=5, capacity=lambda: 5)
    with admission.admit(Tenant("acme", b"a", max_requests=1)):
        with admission.admit(Tenant("acme", b"a", max_requests=2)):
            pass
        refusal(admission, Tenant("acme", b"a", max_requests=1))


def test_each_of_several_servers_has_its_share_of_a_tenant() -> None:
    admission = Admission(max_waiting=8, capacity=lambda: 8, servers=2)
    acme = Tenant("acme", b"a", max_requests=3, max_tokens=9)
    with admission.admit(acme) as place, admission.admit(acme):
        place(5)
        refusal(admission, acme)
        with pytest.raises(ServiceError):
            place(1)


def held_by_floods(tenants: int, room: int) -> list[int]:
    """Return how many requests each of so many tenants holds, all of which want all places."""
    admission = Admission(max_waiting=room - 4, capacity=lambda: 4, shared=lambda: True)
    floods = [Tenant(f"flood-{number}", bytes([number])) for number in range(tenants)]
    held = dict.fromkeys((flood.name for flood in floods), 0)
    with contextlib.ExitStack() as stack:
        for _ in range(room):
            for flood in floods:
                with contextlib.suppress(ServiceError):
                    stack.enter_context(admission.admit(flood))
                    held[flood.name] += 1
        # Somebody else is let in all the same.
        stack.enter_context(admission.admit(Tenant("trickle", b"trickle")))
    return list(held.values())


@pytest.mark.parametrize(("tenants", "held"), [(1, [12]), (2, [8, 8]), (5, [4] * 5)])
def test_no_tenant_takes_all_the_room_for_waiting(tenants: int, held: list[int]) -> None:
    assert held_by_floods(tenants, 24) == held


def test_the_background_fills_half_of_the_room_for_waiting() -> None:
    admission = Admission(max_waiting=6, capacity=lambda: 2)
    with contextlib.ExitStack() as stack:
        for _ in range(2 + 3):
            stack.enter_context(admission.admit(EVERYONE, background=True))
        error = refusal(admission, background=True)
        assert (error.reason, error.metadata["limit"]) == ("QUEUE_FULL", "5")
        for _ in range(3):
            stack.enter_context(admission.admit(EVERYONE))


def test_what_nobody_waits_for_may_be_one_tenant_s() -> None:
    alone = Tenant("alone", b"alone")
    for shared, expected in ((True, 4), (False, 5)):
        admission = Admission(1, capacity=lambda: 4, shared=lambda shared=shared: shared)  # type: ignore[misc]
        with contextlib.ExitStack() as stack:
            for _ in range(expected):
                stack.enter_context(admission.admit(alone))
            error = refusal(admission, alone)
        assert error.reason == ("TENANT_LIMIT" if shared else "QUEUE_FULL")
        assert error.metadata["limit"] == ("fair-share" if shared else "5")


def test_keys_of_one_tenant_or_of_several() -> None:
    one = f"acme sha256:{'0' * 64}\nacme sha256:{'1' * 64}"
    assert not ApiKeys().shared
    assert not ApiKeys(lambda: parse_keys(one)).shared
    assert ApiKeys(lambda: parse_keys(one + "\nplain")).shared
