"""The files that say who is let in, and by which certificate the server is known."""

import asyncio
from collections.abc import Callable

import grpc

from blockdraft_runtime.credentials import (
    Certificate,
    Reloaded,
    read_certificate,
    server_credentials,
)
from blockdraft_runtime.settings.server import ServerSettings
from blockdraft_server.access.auth import ApiKeys
from blockdraft_server.access.tenants import Keys, parse_keys


class AccessFiles:
    """Keys and certificate as their files say now.

    Attributes:
        api_keys: The keys that are let in.
    """

    def __init__(self, settings: ServerSettings, on_expiry: Callable[[float], None]) -> None:
        """Read the files that the settings name.

        Args:
            settings: Name them, or not.
            on_expiry: Called with the time at which the certificate expires, in seconds since
                1970, now and whenever there is another.

        Raises:
            UnusableFilesError: If one of them cannot be used.
        """
        self._keys = _keys(settings)
        self._certificate = _certificate(settings)
        self._on_expiry = on_expiry
        keys = self._keys
        self.api_keys = ApiKeys() if keys is None else ApiKeys(lambda: keys.value)
        self._tell_expiry()

    def credentials(self) -> grpc.ServerCredentials | None:
        """Return the credentials of the public port; None for plaintext."""
        certificate = self._certificate
        return None if certificate is None else server_credentials(lambda: certificate.value)

    async def keep_current(self, seconds: float) -> None:
        """Look for changes every so many seconds, for ever."""
        looks = []
        if self._keys is not None:
            looks.append(self._keys.keep_current(seconds, lambda: None))
        if self._certificate is not None:
            looks.append(self._certificate.keep_current(seconds, self._tell_expiry))
        await asyncio.gather(*looks)

    def _tell_expiry(self) -> None:
        if self._certificate is not None:
            self._on_expiry(self._certificate.value.expires)


def _keys(settings: ServerSettings) -> Reloaded[Keys] | None:
    path = settings.api_key_file
    if path is None:
        return None
    what = f"{path} of --api-key-file"
    return Reloaded(what, [path], lambda: parse_keys(path.read_text(encoding="utf-8")))


def _certificate(settings: ServerSettings) -> Reloaded[Certificate] | None:
    tls = settings.tls
    if tls is None:
        return None
    files = tls.certificate, tls.key, tls.client_authorities
    return Reloaded(
        "the certificate of --tls-cert",
        [path for path in files if path is not None],
        lambda: read_certificate(*files),
    )
