"""Connections over HTTP: limits on their number and their time, and checks of their headers."""

import asyncio
import ipaddress
import logging
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from blockdraft_server.openai.errors import http_error

MAX_CONNECTIONS = 1024
# For TLS, for the headers of the first request, and for each body.
SECONDS = 20.0

logger = logging.getLogger(__name__)


class _Discreet(logging.LoggerAdapter[logging.Logger]):
    """Leaves out lines that are no HTTP, which aiohttp would log in full: they may hold keys."""

    def log(
        self, level: int, msg: object, *args: object, exc_info: Any = None, **options: Any
    ) -> None:
        if isinstance(exc_info, HttpProcessingError):
            level, msg, exc_info = logging.INFO, f"{msg}: {type(exc_info).__name__}", None
        super().log(level, msg, *args, exc_info=exc_info, **options)


class Connection(web.RequestHandler):
    """A connection that is closed if it is one too many, or if its first request is late."""

    def __init__(self, server: web.Server) -> None:
        """Hand requests to `server`."""
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # which says so itself
            logger=_Discreet(logger),  # type: ignore[arg-type]  # it logs
            # A small body could become hundreds of megabytes, on the event loop.
            auto_decompress=False,
        )
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, or end at once."""
        super().connection_made(transport)
        self._silence = asyncio.get_running_loop().call_later(SECONDS, self.force_close)
        if len(self._server.connections) > MAX_CONNECTIONS:
            self.force_close()

    def begun(self) -> None:
        """Note that a request has come."""
        self._silence.cancel()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Log a message that is no HTTP, and answer in OpenAI's form."""
        text = super().handle_error(request, status, exc, message)
        response = web.json_response(http_error(status, "the request is no HTTP"), status=status)
        response.headers.update(text.headers)
        response.force_close()
        return response


async def expected(request: web.Request) -> web.Response | None:
    """Ask for the body of a request with `Expect: 100-continue`; refuse other expectations."""
    if request.headers["Expect"].lower() != "100-continue":
        return web.json_response(http_error(417, "nothing but 100-continue is known"), status=417)
    if request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return None


def check_headers(request: web.Request, hosts: Collection[str] | None) -> None:
    """Refuse compressed bodies and, unless `hosts` is None, requests that a web page may send.

    A page in a browser, or a name that resolves to this host (DNS rebinding), could use a server
    that needs no key. So `Host` has to be an address, a name of this machine or one of `hosts`, and
    `Origin` one of these names or the same host.
    """
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise web.HTTPUnsupportedMediaType(reason="the body must not be compressed")
    if hosts is None or "*" in hosts:
        return
    host = urlsplit(f"//{request.headers.get('Host', 'localhost')}").hostname or ""
    allowed_hosts = {"localhost", "127.0.0.1", "::1", *hosts}
    if host not in allowed_hosts and not _is_address(host):
        raise web.HTTPForbidden(reason=f"host {host!r} is not among --allowed-host")
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).hostname not in {host, *allowed_hosts}:
        raise web.HTTPForbidden(reason=f"origin {origin!r} is not among --allowed-host")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
