"""Bounds on the requests that the server holds at once, in all and of each tenant. Pure: no I/O."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from blockdraft_runtime.status import ServiceError, invalid_argument
from blockdraft_server.keys import Tenant

TENANT_LIMIT = "TENANT_LIMIT"
LOADING = "LOADING"

_MIN_RETRY_SECONDS = 0.1
_MAX_RETRY_SECONDS = 30.0

TakeTokens = Callable[[int], None]
"""Adds tokens to the tenant's, or refuses: for good if the request alone exceeds the limit."""


class Admission:
    """Admits requests while there is capacity for them to run or to wait.

    Requests beyond what the verifiers decode at once wait in the verifiers' own queues, where
    the scheduler lets tenants take turns. The server only bounds their number: it leaves some
    capacity for every tenant, and half of the waiting requests must not be background ones. Several
    servers before the same verifiers do not know of each other: each admits its share of the limit.
    """

    def __init__(
        self,
        max_waiting: int,
        capacity: Callable[[], int],
        servers: int = 1,
        shared: Callable[[], bool] = lambda: False,
        unavailable: Callable[[], ServiceError] = lambda: verifier_unavailable(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty.

        `max_waiting` requests may wait beyond the `capacity`, which is how many sequences the
        healthy verifiers decode at once. `servers` share the verifiers, this one included;
        `shared` returns whether there may be several tenants, `unavailable` the error while there
        is no healthy verifier.
        """
        self._max_waiting = max_waiting
        self._capacity = capacity
        self._servers = servers
        self._shared = shared
        self._unavailable = unavailable
        self._clock = clock
        self._admitted = 0
        # By the salts of the tenants that hold requests; a tenant's limits may change meanwhile.
        self._requests: Counter[bytes] = Counter()
        self._tokens: Counter[bytes] = Counter()
        self._draining = False
        self._last_release: float | None = None
        self._release_interval = 1.0

    @property
    def admitted(self) -> int:
        """Requests held now."""
        return self._admitted

    def drain(self) -> None:
        """Refuse all requests from now on; admitted ones go on."""
        self._draining = True

    @contextmanager
    def admit(self, tenant: Tenant, *, background: bool = False) -> Iterator[TakeTokens]:
        """Hold a slot, and the tokens that the yielded function adds, until the context ends.

        UNAVAILABLE while draining or without a verifier, RESOURCE_EXHAUSTED while full or while
        the tenant holds as many as it may.
        """
        self._check(tenant, background)
        token_count = 0

        def take_tokens(count: int) -> None:
            nonlocal token_count
            self._check_tokens(tenant, count)
            self._tokens[tenant.salt] += count
            token_count += count

        self._admitted += 1
        self._requests[tenant.salt] += 1
        try:
            yield take_tokens
        finally:
            self._admitted -= 1
            self._requests[tenant.salt] -= 1
            self._tokens[tenant.salt] -= token_count
            if not self._requests[tenant.salt]:
                # A tenant that holds nothing is forgotten.
                del self._requests[tenant.salt], self._tokens[tenant.salt]
            self._note_release()

    def check_count(self, count: int) -> None:
        """Refuse a request for more completions than are ever held at once."""
        limit = self._limit()
        if self._capacity() > 0 and count > limit:
            message = f"{count} completions are more than the {limit} that are held at once"
            raise invalid_argument("n", message, count=count, limit=limit)

    def _limit(self, background: bool = False) -> int:
        """Return this server's share of what the verifiers decode and what may wait."""
        waiting = self._max_waiting // 2 if background else self._max_waiting
        return -(-(self._capacity() + waiting) // self._servers)

    def _check(self, tenant: Tenant, background: bool) -> None:
        if self._draining:
            raise ServiceError(
                grpc.StatusCode.UNAVAILABLE,
                "DRAINING",
                "the server is shutting down",
                retry_after_seconds=1.0,
            )
        capacity = self._capacity()
        if capacity < 1:
            raise self._unavailable()
        admitted, request_count = self._admitted, self._requests[tenant.salt]
        own_limit = self._share(tenant.max_requests)
        if own_limit is not None and request_count >= own_limit:
            message = f"{request_count} requests of the caller are held, "
            message += f"at most {own_limit} are allowed"
            raise self._over_limit("max-requests", own_limit, message, {"held": request_count})
        limit = self._limit(background)
        free_slots = limit - admitted
        if free_slots <= 0:
            raise ServiceError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "QUEUE_FULL",
                f"the server holds {admitted} requests, at most {limit} are allowed",
                metadata={"requests": admitted, "limit": limit},
                retry_after_seconds=self._retry_seconds(),
            )
        # Once requests have to wait, no tenant holds more than there are slots left. So one tenant
        # that asks for all of them gets half, two get a third each, and the rest is for others.
        crowded = admitted >= -(-capacity // self._servers)
        if crowded and request_count >= free_slots and self._shared():
            message = f"{request_count} requests of the caller are held; "
            message += f"the {free_slots} free slots are left to other callers"
            raise self._over_limit("fair-share", free_slots, message, {"held": request_count})

    def _check_tokens(self, tenant: Tenant, count: int) -> None:
        token_count, limit = self._tokens[tenant.salt], self._share(tenant.max_tokens)
        if limit is not None and token_count + count > limit:
            message = f"the request may take {count} tokens beside {token_count} of the caller's "
            message += f"other requests, at most {limit} are allowed"
            counts = {"tokens": count, "held": token_count}
            raise self._over_limit("max-tokens", limit, message, counts, retry=count <= limit)

    def _share(self, limit: int | None) -> int | None:
        """Return this server's share of a tenant's limit."""
        return None if limit is None else -(-limit // self._servers)

    def _over_limit(
        self, name: str, limit: int, message: str, counts: dict[str, int], *, retry: bool = True
    ) -> ServiceError:
        return ServiceError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            TENANT_LIMIT,
            message,
            metadata={"limit": name, "allowed": limit, **counts},
            retry_after_seconds=self._retry_seconds() if retry else None,
        )

    def _retry_seconds(self) -> float:
        """Return about when the next slot becomes free."""
        return min(max(self._release_interval, _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS)

    def _note_release(self) -> None:
        now = self._clock()
        if self._last_release is not None:
            # An exponential moving average over about the last ten requests.
            self._release_interval += 0.1 * (now - self._last_release - self._release_interval)
        self._last_release = now


def loading(message: str) -> ServiceError:
    """Return the error for a request that comes before the start is over."""
    return ServiceError(grpc.StatusCode.UNAVAILABLE, LOADING, message, retry_after_seconds=1.0)


def verifier_unavailable(message: str = "no verifier is ready", **metadata: object) -> ServiceError:
    """Return the error for a request that finds no verifier."""
    return ServiceError(
        grpc.StatusCode.UNAVAILABLE,
        "VERIFIER_UNAVAILABLE",
        message,
        metadata=metadata,
        retry_after_seconds=1.0,
    )
