"""Bearer API keys, checked before a request is read."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from typing import Any

import grpc

from blockdraft_runtime.status import ServiceError, abort
from blockdraft_server.access.tenants import EVERYONE, Keys, Tenant, digest_of

_SCHEME = "bearer "


class ApiKeys:
    """The keys that are let in, by their digests."""

    def __init__(self, current: Callable[[], Keys] | None = None) -> None:
        """Let in the keys that `current` returns at the time; None lets everyone in."""
        self._current = current

    @property
    def needed(self) -> bool:
        """Whether a call needs one of them."""
        return self._current is not None

    @property
    def shared(self) -> bool:
        """Whether there is more than one tenant."""
        return self._current is not None and len({one.salt for one in self._current().values()}) > 1

    def tenant(self, authorization: str | None) -> Tenant:
        """Return whose call it is that has this `authorization` metadata.

        What the time of a look-up may tell of a digest tells nothing of a key.

        Raises:
            ServiceError: UNAUTHENTICATED.
        """
        if self._current is None:
            return EVERYONE
        tenant = self._current().get(digest_of(_key(authorization)))
        if tenant is None:
            raise _unauthenticated("the API key is not valid")
        return tenant


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Lets calls to some services through only with a key; others, such as health, are open."""

    def __init__(self, keys: ApiKeys, services: Collection[str]) -> None:
        """Guard `services`, given by full name."""
        self._keys = keys
        self._prefixes = tuple(f"/{service}/" for service in services)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's handler, or one that refuses the call."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(self._prefixes):
            return handler
        try:
            self._keys.tenant(authorization_of(handler_call_details.invocation_metadata))
        except ServiceError as error:
            return _refusal(error, streaming=handler.response_streaming)
        return handler


def authorization_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    """Return the `authorization` of a call's metadata; None if it has none."""
    value = dict(metadata or ()).get("authorization")
    return value.decode() if isinstance(value, bytes) else value


def _key(authorization: str | None) -> str:
    """Return the key in the `authorization` metadata."""
    if authorization is None:
        raise _unauthenticated("the call carries no API key")
    if not authorization.lower().startswith(_SCHEME):
        raise _unauthenticated("the authorization metadata is not 'Bearer' and an API key")
    return authorization[len(_SCHEME) :].strip()


def _refusal(error: ServiceError, *, streaming: bool) -> Any:
    async def unary(request: object, context: Any) -> None:
        await abort(context, error)

    async def stream(request: object, context: Any) -> AsyncIterator[None]:
        await abort(context, error)
        yield

    if streaming:
        return grpc.unary_stream_rpc_method_handler(stream)
    return grpc.unary_unary_rpc_method_handler(unary)


def _unauthenticated(message: str) -> ServiceError:
    return ServiceError(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", message)
