"""OpenAI's HTTP API over aiohttp: routes, keys, streams, and errors as its clients know them."""

import asyncio
import contextlib
import json
import logging
import math
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from aiohttp import web
from prometheus_client import CollectorRegistry

from blockdraft_models.tokenizer.text_decoder import TokenBytes
from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.event_loop import aside
from blockdraft_runtime.settings.server import ServerSettings, TlsSettings
from blockdraft_runtime.status import invalid_argument, service_error
from blockdraft_server.completion import LAST_WORDS_SECONDS, Complete, merged
from blockdraft_server.constraints import MAX_CONSTRAINT_BYTES
from blockdraft_server.keys import ApiKeys
from blockdraft_server.openai.connections import SECONDS, Connection, check_headers, expected
from blockdraft_server.openai.errors import error_body, http_error
from blockdraft_server.openai.output_format import OutputFormat
from blockdraft_server.openai.output_forms import HERMES, output_form
from blockdraft_server.openai.playground import add_playground
from blockdraft_server.openai.requests import CompletionBatch, chat_request, completion_request
from blockdraft_server.openai.responses import Answer, ChatAnswer, TextAnswer
from blockdraft_server.openai.service_routes import ServiceRoutes
from blockdraft_server.openai.structured_outputs import naming
from blockdraft_server.openai.tokenization import (
    Tokenize,
    prompt_to_tokenize,
    spelling,
    tokens,
    tokens_to_spell,
)
from blockdraft_server.request import ServedModel
from blockdraft_server.routing.pool import VerifierPool

logger = logging.getLogger(__name__)

# Bytes of names and options, beside the text of a prompt and a constraint; escapes of JSON may make
# that text three times as long.
_ROOM_BYTES = 256 * 1024
_ESCAPING = 3
# So many larger bodies are held at once, 128 MiB by default.
_SMALL_BODY_BYTES = 64 * 1024
_LARGE_BODIES = 32

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """Serves OpenAI's HTTP API while it is open.

    Attributes:
        address: Where it listens, once it is open.
        template: The model's chat template, once its tokenizer is loaded.
        control_tokens: The tokenizer's control tokens, by their spelling.
        token_bytes: The tokenizer's bytes of a token.
    """

    def __init__(
        self,
        settings: ServerSettings,
        address: str,
        complete: Complete,
        tokenize: Tokenize,
        pool: VerifierPool,
        keys: ApiKeys,
        registry: CollectorRegistry,
    ) -> None:
        """Serve the pool's verifiers at `address`, with the keys and certificate of the server."""
        self.address = address
        self.template: Any = None
        self.control_tokens: Mapping[str, int] = {}
        self.token_bytes: TokenBytes | None = None
        self._settings = settings
        self._complete = complete
        self._tokenize = tokenize
        self._pool = pool
        self._keys = keys
        self._hosts: frozenset[str] = frozenset()
        self._listener: asyncio.Server | None = None
        self._threads = ThreadPoolExecutor(1, "bodies")
        self._large_bodies = asyncio.Semaphore(_LARGE_BODIES)
        self._tls = None if settings.tls is None else _tls(settings.tls)
        texts = settings.limits.max_prompt_bytes + MAX_CONSTRAINT_BYTES
        max_bytes = _ESCAPING * texts + _ROOM_BYTES
        application = web.Application(client_max_size=max_bytes, middlewares=[self._let_in])
        self._model = ServedModel(settings.served_name, pool.adapters)
        service = ServiceRoutes(self._model, pool, registry)
        for method, path, handler in (
            ("POST", "/v1/chat/completions", self._chat),
            ("POST", "/v1/completions", self._text),
            ("POST", "/tokenize", self._tokens),
            ("POST", "/detokenize", self._spelling),
            ("GET", "/v1/models", service.models),
            ("GET", "/v1/models/{model:.+}", service.model),
            ("GET", "/version", service.version),
            ("GET", "/metrics", service.metrics),
        ):
            guarded = self._guarded(handler)
            application.router.add_route(method, path, guarded, expect_handler=expected)
        application.router.add_get("/health", service.health, expect_handler=expected)
        if settings.playground:
            add_playground(application.router)
        self._runner = web.AppRunner(
            application,
            # A client that goes away frees what its request holds.
            handler_cancellation=True,
            shutdown_timeout=settings.process.drain_seconds,
        )

    async def open(self) -> None:
        """Listen; `OSError` if the address cannot be bound."""
        host, _, port = self.address.rpartition(":")
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self._hosts = frozenset((host, *self._settings.allowed_hosts))
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                partial(Connection, server),
                host.strip("[]"),
                int(port),
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else SECONDS,
                reuse_port=self._settings.servers > 1,
            )
        except OSError as error:
            message = f"cannot listen at {self.address}: is it taken, or not of this host?"
            raise OSError(message) from error
        self.address = f"{host}:{self._listener.sockets[0].getsockname()[1]}"

    def open_chat(
        self, template: Any, control_tokens: Mapping[str, int], token_bytes: TokenBytes
    ) -> None:
        """Take the chat template of the model, None if it has none, and what its tokens are."""
        self.template, self.control_tokens = template, control_tokens
        self.token_bytes = token_bytes
        if template is not None and output_form(template) is None:
            logger.warning(
                "the chat template of %s writes calls of tools in a form that is not read: calls "
                "come as content, but for those that a request demands",
                self._settings.served_name,
            )

    async def close(self) -> None:
        """Accept no connection any more; calls under way go on for as long as the server drains."""
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def renew_certificate(self) -> None:
        """Use the certificate that now lies in the files for connections to come."""
        if self._tls is not None and self._settings.tls is not None:
            self._tls.load_cert_chain(self._settings.tls.certificate, self._settings.tls.key)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        form = None if self.template is None else output_form(self.template)
        # Demanded calls have a form that JSON Schema describes.
        calls = form if form is not None and form.call is not None else HERMES
        batch = await self._converted(request, partial(chat_request, calls=calls))
        tools = batch.tools
        format = OutputFormat.of(self.template, batch.template_arguments, tools.schemas)
        if tools.tags is not None:
            format = replace(format, form=calls, tools=tools.schemas)
        stand_ins = format.stand_ins(self.control_tokens)
        for sampling in (item.sampling for item in batch.requests):
            if batch.form is not None and format.free_text is not None:
                sampling.constraint.free_text.CopyFrom(format.free_text)
                if tools.tags is None and form is not None:
                    sampling.constraint.free_text.lead = form.answer
            if form is not None and not sampling.ignore_eos:
                ends = map(self.control_tokens.get, form.stops)
                sampling.stop_token_ids.extend(end for end in ends if end is not None)
        answer = partial(ChatAnswer, format=format, stand_ins=stand_ins, named=tools.named)
        return await self._answered(request, batch, answer, stand_ins)

    async def _text(self, request: web.Request) -> web.StreamResponse:
        batch = await self._converted(request, completion_request)
        answer = partial(TextAnswer, echoed=batch.echoed, bare=batch.bare)
        return await self._answered(request, batch, answer, {})

    async def _tokens(self, request: web.Request) -> web.Response:
        prompt = await self._converted(request, partial(prompt_to_tokenize, self._model))
        listing = await self._tokenize(prompt, _metadata(request))
        return web.json_response(tokens(listing, self._pool.ready_limits.max_context_tokens))

    async def _spelling(self, request: web.Request) -> web.Response:
        prompt = await self._converted(request, partial(tokens_to_spell, self._model))
        return web.json_response(spelling(await self._tokenize(prompt, _metadata(request))))

    async def _converted(self, request: web.Request, convert: Callable[[object], T]) -> T:
        """Return the body, as `convert` reads it; a large one waits for its turn."""
        if request.content_type != "application/json":
            # A web page may send others without asking first.
            raise web.HTTPUnsupportedMediaType(reason="Content-Type must be application/json")
        length = request.content_length
        async with contextlib.AsyncExitStack() as turn:
            try:
                async with asyncio.timeout(SECONDS):
                    if length is None or length > _SMALL_BODY_BYTES:
                        await turn.enter_async_context(self._large_bodies)
                    data = await request.read()
            except TimeoutError:
                raise web.HTTPRequestTimeout(reason=f"no whole body in {SECONDS:g} s") from None
            except web.HTTPRequestEntityTooLarge as error:
                message = f"the request is too large: {error.text}"
                raise invalid_argument("body", message, bytes=length) from error
            except web.RequestPayloadError as error:
                raise invalid_argument("body", "the body is broken off or malformed") from error
            return await aside(self._threads, len(data), lambda: convert(_read(data)))

    async def _answered(
        self,
        request: web.Request,
        batch: CompletionBatch,
        kind: Callable[[str, int, int, bool, TokenBytes | None, bool], Answer],
        stand_ins: Mapping[str, str],
    ) -> web.StreamResponse:
        wants_log_probs = batch.requests[0].sampling.HasField("log_probs")
        prompts, count = len(batch.requests), batch.count
        token_bytes = self.token_bytes if batch.sources else None
        name, details = batch.requests[0].model or self._model.name, batch.details
        answer = kind(name, prompts, count, wants_log_probs, token_bytes, details)
        # HTTP callers set no deadline.
        completions = self._complete(batch.requests, count, _metadata(request), None, stand_ins)
        with naming(batch.form):
            async with contextlib.aclosing(merged(completions)) as messages:
                if batch.stream:
                    with self._until_deadline(request):
                        return await _stream(request, messages, answer, batch.usage)
                async for index, message in messages:
                    if message is not None:
                        answer.keep(index, message)
        return web.json_response(answer.whole())

    @contextlib.contextmanager
    def _until_deadline(self, request: web.Request) -> Iterator[None]:
        """Cut the connection of a caller that does not read its answer in time."""

        def cut() -> None:
            if request.transport is not None:
                request.transport.abort()

        seconds = self._settings.limits.default_timeout_seconds + LAST_WORDS_SECONDS
        timer = asyncio.get_running_loop().call_later(seconds, cut)
        try:
            yield
        finally:
            timer.cancel()

    @web.middleware
    async def _let_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests by their headers; report unknown paths and methods as OpenAI's errors."""
        assert isinstance(request.protocol, Connection)
        request.protocol.begun()
        try:
            check_headers(request, None if self._keys.needed else self._hosts)
            response = await handler(request)
        except web.HTTPException as error:
            message = f"{request.method} {request.path}: {error.reason}"
            if error.status == 404:
                paths = (route.canonical for route in request.app.router.resources())
                message += f"; there are {', '.join(path for path in paths if '.' not in path)}"
            allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            content = http_error(error.status, message)
            response = web.json_response(content, status=error.status, headers=allow)
        if not request.content.is_eof():
            response.force_close()
        return response

    def _guarded(self, handler: Handler) -> Handler:
        """Return a handler that checks the key before it reads the body, and reports errors."""

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                self._keys.tenant(_metadata(request))
                return await handler(request)
            except web.HTTPException:
                raise
            except UnicodeEncodeError:
                error = invalid_argument("body", "the body has text that is no Unicode")
            except RecursionError:
                error = invalid_argument("body", "the body is nested too deeply")
            except Exception as unexpected:
                error = service_error(unexpected)
            status, content = error_body(error, request.path)
            headers = {}
            if status in (429, 503):
                headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_seconds or 0)))
            return web.json_response(content, status=status, headers=headers)

        return handle


def _metadata(request: web.Request) -> tuple[tuple[str, str], ...]:
    """Return the headers as gRPC has them: names in lower case."""
    return tuple((name.lower(), value) for name, value in request.headers.items())


def _read(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise invalid_argument("body", f"the body is not valid JSON: {error}") from error


async def _stream(
    request: web.Request,
    messages: AsyncGenerator[tuple[int, inference_pb2.StreamGenerateResponse | None], None],
    answer: Answer,
    usage: bool,
) -> web.StreamResponse:
    """Write server-sent events; an error before the first one is an answer of its own."""
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    )
    try:
        async for index, message in messages:
            if message is None:
                continue
            if not response.prepared:
                await response.prepare(request)
            for piece in answer.pieces(index, message):
                # As from OpenAI, where a last piece has the usage.
                await response.write(_event({**piece, "usage": None} if usage else piece))
        if usage:
            await response.write(_event(answer.usage_piece()))
        await response.write(b"data: [DONE]\n\n")
    except ConnectionResetError:
        return response  # The client went away.
    except Exception as error:
        if not response.prepared:
            raise
        # The status was told already.
        await response.write(_event(error_body(service_error(error), request.path)[1]))
    await response.write_eof()
    return response


def _event(content: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(content, ensure_ascii=False).encode()


def _tls(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(settings.certificate, settings.key)
    if settings.client_authorities is not None:
        context.load_verify_locations(settings.client_authorities)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
