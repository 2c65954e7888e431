"""Who may call: tenants, their limits, and the file that lists their keys. No I/O."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

Keys = Mapping[bytes, "Tenant"]
"""The tenants, by the digests of their keys."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_LIMIT = re.compile(r"(max-requests|max-tokens)=([1-9][0-9]{0,11})")
_NO_LEARNING = "no-learning"
# What callers are called of whom nothing is known but that they were let in.
UNNAMED = "unnamed"
# What those are called who have no series of metrics of their own.
OTHER_TENANTS = "other"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A caller, or several who share a name.

    Attributes:
        name: For logs and metrics. Callers with a key alone are all `UNNAMED`.
        salt: What tells tenants apart, and keeps their prompts apart in the prefix cache. No key
            can be told from it.
        max_requests: Most requests held at a time; None for any number.
        max_tokens: Most tokens of all requests held, prompts and longest answers together; None
            for any number.
        recordable: Whether a drafter that learns may record the requests.
    """

    name: str
    salt: bytes
    max_requests: int | None = None
    max_tokens: int | None = None
    recordable: bool = True


# The only tenant where no key is needed.
EVERYONE = Tenant(UNNAMED, b"")


def digest_of(key: str) -> bytes:
    """Return what a key is known by."""
    return hashlib.sha256(key.encode()).digest()


def parse_keys(text: str) -> dict[bytes, Tenant]:
    """Return the tenants that a file of keys lists.

    Each line is a key, or `NAME sha256:DIGEST` with `max-requests=N`, `max-tokens=N` and
    `no-learning` behind it; blank lines and lines with # are skipped. Several lines may name one
    tenant, to give it several keys; they have to agree on all else.

    Raises:
        ValueError: If a line is malformed or contradicts another, or if there is no key, which
            would let everyone in. The message names the line and never quotes it.
    """
    keys: dict[bytes, Tenant] = {}
    tenants: dict[str, Tenant] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        digest, tenant = _alone(words[0], number) if len(words) == 1 else _named(words, number)
        if tenant.name != UNNAMED and tenants.setdefault(tenant.name, tenant) != tenant:
            raise ValueError(f"line {number}: {tenant.name} has other limits in an earlier line")
        if keys.setdefault(digest, tenant) != tenant:
            raise ValueError(f"line {number}: the key belongs to another tenant in an earlier line")
    if not keys:
        raise ValueError("there is no API key")
    return keys


def line_of(
    name: str,
    key: str,
    max_requests: int | None,
    max_tokens: int | None,
    *,
    recordable: bool = True,
) -> str:
    """Return the line for the file of keys that lets a tenant in with a key.

    Raises:
        ValueError: If the name or a limit cannot be in such a file.
    """
    words = [name, f"sha256:{digest_of(key).hex()}"]
    words += [f"max-requests={max_requests}"] if max_requests is not None else []
    words += [f"max-tokens={max_tokens}"] if max_tokens is not None else []
    words += [] if recordable else [_NO_LEARNING]
    line = " ".join(words)
    parse_keys(line)
    return line


def _alone(word: str, number: int) -> tuple[bytes, Tenant]:
    if _DIGEST.fullmatch(word):
        # Taken for a key, it would let in whoever has read the file.
        raise ValueError(f"line {number}: a digest needs the name of a tenant before it")
    digest = digest_of(word)
    return digest, Tenant(UNNAMED, hashlib.sha256(b"prefix cache" + digest).digest())


def _named(words: list[str], number: int) -> tuple[bytes, Tenant]:
    name, word, *limits = words
    recordable = _NO_LEARNING not in limits
    if not recordable:
        limits.remove(_NO_LEARNING)
    if not _NAME.fullmatch(name) or name in (UNNAMED, OTHER_TENANTS):
        raise ValueError(
            f"line {number}: the tenant's name must have up to 63 of a-z, 0-9, '.', '_' and '-', "
            f"begin with a letter or a digit, and be neither {UNNAMED} nor {OTHER_TENANTS}"
        )
    digest = _DIGEST.fullmatch(word)
    if digest is None:
        raise ValueError(
            f"line {number}: after the tenant's name must come sha256: and 64 hexadecimal digits"
        )
    found = [_LIMIT.fullmatch(limit) for limit in limits]
    given = {one[1]: int(one[2]) for one in found if one is not None}
    if len(given) < len(limits):
        raise ValueError(
            f"line {number}: after the digest may come max-requests=N, max-tokens=N and "
            f"{_NO_LEARNING}, each at most once, with N from 1 on"
        )
    salt = hashlib.sha256(b"prefix cache of tenant " + name.encode()).digest()
    most = given.get("max-requests"), given.get("max-tokens")
    tenant = Tenant(name, salt, *most, recordable=recordable)
    return bytes.fromhex(digest[1]), tenant
