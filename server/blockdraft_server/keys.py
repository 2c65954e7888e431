"""API keys: the file that lists them, their tenants, and the check of each call."""

import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from blockdraft_runtime.status import ServiceError, abort

Metadata = Collection[tuple[str, str | bytes]]
"""The metadata of a call: names, in lower case, and values."""

TenantsByKey = Mapping[bytes, "Tenant"]
"""The tenants, by the digests of their keys."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_LIMIT = re.compile(r"(max-requests|max-tokens)=([1-9][0-9]{0,11})")
_BACKGROUND = "background"
_NO_LEARNING = "no-learning"
_SCHEME = "bearer "
# The name of callers with a key that has no name.
UNNAMED = "unnamed"
# The name of tenants without a series of metrics of their own.
OTHER_TENANTS = "other"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A caller, or several callers with the same name."""

    # For logs and metrics. Callers whose key has no name are all `UNNAMED`.
    name: str
    # Identifies a tenant, and keeps its prompts apart in the prefix cache. It does not reveal the
    # key.
    salt: bytes
    max_requests: int | None = None  # most requests held at a time; None for any number
    # Most tokens of all requests held, prompts and longest completions; None for any number.
    max_tokens: int | None = None
    background: bool = False  # whether all its requests are in the background, whatever they say
    recordable: bool = True  # whether a drafter that learns may record the requests


# The only tenant where no key is needed.
EVERYONE = Tenant(UNNAMED, b"")


def digest_of(key: str) -> bytes:
    """Return the digest that identifies a key."""
    # HTTP headers may hold bytes that are no text.
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def parse_keys(text: str) -> dict[bytes, Tenant]:
    """Return the tenants that a file of keys lists.

    Each line is a key, or `NAME sha256:DIGEST` with `max-requests=N`, `max-tokens=N`, `background`
    and `no-learning` behind it; blank lines and lines with # are skipped. Several lines may name
    one tenant, to give it several keys; they have to agree on all else.

    `ValueError` if a line is malformed or contradicts another, or if there is no key, which would
    admit every caller. The message names the line and never quotes it.
    """
    keys: dict[bytes, Tenant] = {}
    tenants: dict[str, Tenant] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            digest, tenant = _alone(words[0]) if len(words) == 1 else _named(*words)
            if tenant.name != UNNAMED and tenants.setdefault(tenant.name, tenant) != tenant:
                raise ValueError(f"{tenant.name} has other limits in an earlier line")
            if keys.setdefault(digest, tenant) != tenant:
                raise ValueError("the key belongs to another tenant in an earlier line")
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    if not keys:
        raise ValueError("there is no API key")
    return keys


def line_of(
    name: str,
    key: str,
    max_requests: int | None,
    max_tokens: int | None,
    *,
    background: bool = False,
    recordable: bool = True,
) -> str:
    """Return the line for the file of keys that lets a tenant in with a key.

    `ValueError` if the name or a limit cannot be in such a file.
    """
    words = [name, f"sha256:{digest_of(key).hex()}"]
    words += [f"max-requests={max_requests}"] if max_requests is not None else []
    words += [f"max-tokens={max_tokens}"] if max_tokens is not None else []
    words += [_BACKGROUND] if background else []
    words += [] if recordable else [_NO_LEARNING]
    line = " ".join(words)
    parse_keys(line)
    return line


def _alone(word: str) -> tuple[bytes, Tenant]:
    if _DIGEST.fullmatch(word):
        # Taken for a key, it would admit anyone with access to the file.
        raise ValueError("a digest needs the name of a tenant before it")
    digest = digest_of(word)
    return digest, Tenant(UNNAMED, hashlib.sha256(b"prefix cache" + digest).digest())


def _named(name: str, word: str, *limits: str) -> tuple[bytes, Tenant]:
    if not _NAME.fullmatch(name) or name in (UNNAMED, OTHER_TENANTS):
        raise ValueError(
            "the tenant's name must have up to 63 of a-z, 0-9, '.', '_' and '-', begin with a "
            f"letter or a digit, and be neither {UNNAMED} nor {OTHER_TENANTS}"
        )
    digest = _DIGEST.fullmatch(word)
    if digest is None:
        raise ValueError("after the tenant's name must come sha256: and 64 hexadecimal digits")
    switches = {_BACKGROUND, _NO_LEARNING}.intersection(limits)
    matches = [_LIMIT.fullmatch(limit) for limit in limits if limit not in switches]
    maxima = {match[1]: int(match[2]) for match in matches if match is not None}
    if len(maxima) + len(switches) < len(limits):
        raise ValueError(
            "after the digest may come max-requests=N and max-tokens=N, with N from 1 on, "
            f"{_BACKGROUND} and {_NO_LEARNING}, each at most once"
        )
    tenant = Tenant(
        name,
        hashlib.sha256(b"prefix cache of tenant " + name.encode()).digest(),
        maxima.get("max-requests"),
        maxima.get("max-tokens"),
        background=_BACKGROUND in switches,
        recordable=_NO_LEARNING not in switches,
    )
    return bytes.fromhex(digest[1]), tenant


class ApiKeys:
    """The valid keys, by their digests."""

    def __init__(self, current: Callable[[], TenantsByKey] | None = None) -> None:
        """Accept the keys that `current` returns at the time; None accepts every call."""
        self._current = current

    @property
    def needed(self) -> bool:
        """Whether a call needs a key."""
        return self._current is not None

    @property
    def shared(self) -> bool:
        """Whether there is more than one tenant."""
        if self._current is None:
            return False
        return len({tenant.salt for tenant in self._current().values()}) > 1

    def tenant(self, metadata: Metadata | None) -> Tenant:
        """Return the tenant of a call with this metadata, or refuse it as UNAUTHENTICATED.

        The time of a look-up may reveal something of a digest, but nothing of a key.
        """
        if self._current is None:
            return EVERYONE
        value = dict(metadata or ()).get("authorization")
        if value is None:
            raise _unauthenticated("the call carries no API key")
        text = value.decode(errors="surrogateescape") if isinstance(value, bytes) else value
        if not text.lower().startswith(_SCHEME):
            raise _unauthenticated("the authorization metadata is not 'Bearer' and an API key")
        tenant = self._current().get(digest_of(text[len(_SCHEME) :].strip()))
        if tenant is None:
            raise _unauthenticated("the API key is not valid")
        return tenant


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Admits calls to some services only with a key; others, such as health, are open.

    It does so before the request is read, so that a call without a key costs no more.
    """

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
        if handler is not None and handler_call_details.method.startswith(self._prefixes):
            try:
                self._keys.tenant(handler_call_details.invocation_metadata)
            except ServiceError as error:
                return _refusal(error, streaming=handler.response_streaming)
        return handler


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
