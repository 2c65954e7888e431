"""The client."""

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar, Unpack

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from blockdraft_client.base import READY_POLL_SECONDS, ClientBase
from blockdraft_client.constraints import OutputConstraint, ParsedT
from blockdraft_client.error_mapping import from_rpc_error
from blockdraft_client.errors import ConnectionFailedError, DeadlineExceededError, NotFoundError
from blockdraft_client.model_info import ModelInfo
from blockdraft_client.params import CallOptions, GenerationOptions, Prompt
from blockdraft_client.parsing import parsed_completion
from blockdraft_client.requests import generation_request, prompt_message
from blockdraft_client.results import Completion, HealthStatus, Tokenization
from blockdraft_client.stream import Stream
from blockdraft_protos.v1 import inference_pb2
from blockdraft_protos.v1.inference_pb2_grpc import InferenceServiceStub

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
ResultT = TypeVar("ResultT")


class Client(ClientBase[grpc.Channel]):
    """A connection to a blockdraft server; safe to use from several threads.

    Connects at the first call. Every method takes a `timeout` in seconds and `metadata` of its
    own, and raises a `BlockdraftError` when the call fails.
    """

    def _prepare(self) -> None:
        # Opened before it is used: threads that share a client must not open a channel each.
        if self._given_channel is not None:
            self._channel = self._given_channel
        elif self._credentials is None:
            self._channel = grpc.insecure_channel(self.address, self._options)
        else:
            self._channel = grpc.secure_channel(self.address, self._credentials, self._options)
        self._stub = InferenceServiceStub(self._channel)
        # The types of grpc_health lack the method.
        self._check: Any = HealthStub(self._channel).Check  # type: ignore[attr-defined]

    def __enter__(self) -> "Client":
        """Return the client."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection; calls in flight are cancelled, later ones refused."""
        self._closed = True
        if self._given_channel is None:
            self._channel.close()

    def generate(
        self, prompt: Prompt, **options: Unpack[GenerationOptions[ParsedT]]
    ) -> Completion[ParsedT]:
        """Generate one whole completion.

        A text is continued as it is, without the chat template; a conversation, a list of
        `ChatMessage`, is put into it. Fields of `SamplingParams` among the options win over
        `sampling`. With `response_format`, a model of pydantic or a JSON Schema, the completion has
        `parsed`; `InvalidOutputError` if it was cut off.
        """
        request, call, form = generation_request(inference_pb2.GenerateRequest, prompt, options)
        read = functools.partial(parsed_completion, form=form)
        return self._call(self._stub.Generate, request, read, call)

    def stream(
        self, prompt: Prompt, **options: Unpack[GenerationOptions[ParsedT]]
    ) -> Stream[ParsedT]:
        """Generate one completion and yield it in chunks; see `generate` for the options.

        With `response_format` the stream's `completion` has `parsed`.
        """
        request, call, form = generation_request(
            inference_pb2.StreamGenerateRequest, prompt, options
        )
        return self._stream(request, call, form)

    def stream_request(
        self, request: inference_pb2.StreamGenerateRequest, **options: Unpack[CallOptions]
    ) -> Stream:
        """Send a request that was built by hand."""
        return self._stream(request, options)

    def _stream(
        self,
        request: inference_pb2.StreamGenerateRequest,
        options: CallOptions,
        form: OutputConstraint | None = None,
    ) -> Stream[ParsedT]:
        call = self._stub.StreamGenerate(request, **self._call_arguments(**options))
        return Stream(call, self.address, self._deadline(**options), form)

    def tokenize(
        self, prompt: Prompt, *, model: str = "", **options: Unpack[CallOptions]
    ) -> Tokenization:
        """Return the tokens of a prompt exactly as generation would see them."""
        request = inference_pb2.TokenizeRequest(model=model, prompt=prompt_message(prompt))
        return self._call(self._stub.Tokenize, request, Tokenization.from_proto, options)

    def model(self, name: str = "", **options: Unpack[CallOptions]) -> ModelInfo:
        """Return the model served under `name`; empty means the model this server serves."""
        request = inference_pb2.GetModelRequest(model=name)
        return self._call(self._stub.GetModel, request, ModelInfo.from_proto, options)

    def health(self, service: str = "", **options: Unpack[CallOptions]) -> HealthStatus:
        """Return whether `service` takes requests; empty means the whole server."""
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            return self._call(self._check, request, HealthStatus.from_proto, options)
        except NotFoundError:
            return HealthStatus.SERVICE_UNKNOWN

    def wait_ready(self, timeout: float) -> None:
        """Wait until the server takes requests, even if it does not listen yet.

        `DeadlineExceededError` if it does not within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        request = health_pb2.HealthCheckRequest()
        while (remaining := deadline - time.monotonic()) > 0:
            # A connection that breaks is one more way of not being ready yet.
            with contextlib.suppress(ConnectionFailedError, DeadlineExceededError):
                status = self._call(
                    self._check, request, HealthStatus.from_proto, {"timeout": remaining}, True
                )
                if status is HealthStatus.SERVING:
                    return
            time.sleep(min(READY_POLL_SECONDS, remaining))
        raise self._not_ready(timeout)

    def _call(
        self,
        method: "grpc.UnaryUnaryMultiCallable[RequestT, ResponseT]",
        request: RequestT,
        read: Callable[[ResponseT], ResultT],
        options: CallOptions,
        wait_for_ready: bool | None = None,
    ) -> ResultT:
        try:
            response = method(
                request, wait_for_ready=wait_for_ready, **self._call_arguments(**options)
            )
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.address, self._deadline(**options)) from error
        return read(response)
