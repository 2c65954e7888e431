"""Bearer API keys, checked before a request is read, and what each of them has to itself."""

import hashlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import grpc

from blockdraft_runtime.status import ServiceError, abort

_SCHEME = "bearer "


class ApiKeys:
    """The keys that are let in."""

    def __init__(self, keys: Collection[str]) -> None:
        """Keep digests of `keys`, which have one length and are not the keys themselves."""
        self._digests = tuple(_digest(key) for key in keys)

    @property
    def needed(self) -> bool:
        """Whether a call needs one of them; if there are none, everyone is let in."""
        return bool(self._digests)

    def check(self, authorization: str | None) -> None:
        """Check the `authorization` metadata of a call.

        Takes the same time for every wrong key: no comparison ends early.

        Raises:
            ServiceError: UNAUTHENTICATED.
        """
        digest = _digest(_key(authorization))
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if not any(matches):
            raise _unauthenticated("the API key is not valid")

    def cache_salt(self, authorization: str | None) -> bytes:
        """Return what keeps the prompts of a call's key apart from those of others.

        Empty if everyone is let in. The key cannot be told from it.

        Raises:
            ServiceError: UNAUTHENTICATED, if the metadata holds no key.
        """
        if not self.needed:
            return b""
        return hashlib.sha256(b"prefix cache" + _digest(_key(authorization))).digest()


def read_api_keys(path: Path) -> frozenset[str]:
    """Return the keys in a file: one per line; blank lines and lines with # are skipped.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it holds no key, which would let everyone in.
    """
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    keys = frozenset(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ValueError(f"{path} holds no API key")
    return keys


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
            self._keys.check(authorization_of(handler_call_details.invocation_metadata))
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


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _unauthenticated(message: str) -> ServiceError:
    return ServiceError(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", message)
