"""What has arrived of a streamed answer; `Stream` and `AsyncStream` add the waiting."""

from typing import Generic, TypeVar

import grpc

from blockdraft_client.errors import BlockdraftError
from blockdraft_client.results import (
    Chunk,
    Completion,
    FinishReason,
    PartialCompletion,
    TokenLogProbs,
)
from blockdraft_client.usage import Usage
from blockdraft_client.wire.error_mapping import from_rpc_error
from blockdraft_protos.v1 import inference_pb2

CallT = TypeVar("CallT")


class StreamedAnswer(Generic[CallT]):
    """Sums up the messages of one stream."""

    def __init__(self, call: CallT, target: str) -> None:
        """Read `call`, which was made to `target`."""
        self._call = call
        self._target = target
        self._closed = False
        self._messages = 0
        self._texts: list[str] = []
        # The one answer the messages amount to, apart from its text, which would be copied
        # for each message.
        self._answer = inference_pb2.GenerateResponse()

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    @property
    def usage(self) -> Usage | None:
        """What the request consumed; None before the last chunk."""
        return Usage.from_proto(self._answer.usage) if self._answer.HasField("usage") else None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why generation ended; None before the last chunk."""
        return FinishReason.from_proto(self._answer.finish_reason)

    @property
    def request_id(self) -> str:
        """Identifier of the request; empty before the first chunk."""
        return self._answer.request_id

    @property
    def model(self) -> str:
        """Name of the model that answers; empty before the first chunk."""
        return self._answer.model

    def _add(self, message: inference_pb2.StreamGenerateResponse) -> Chunk:
        """Take in one message and return its chunk."""
        self._messages += 1
        self._texts.append(message.text)
        answer = self._answer
        answer.request_id = message.request_id or answer.request_id
        answer.model = message.model or answer.model
        answer.token_ids.extend(message.token_ids)
        answer.log_probs.extend(message.log_probs)
        answer.finish_reason = message.finish_reason or answer.finish_reason
        if message.HasField("usage"):
            answer.usage.CopyFrom(message.usage)
        return Chunk.from_proto(message)

    def _completion(self) -> Completion:
        """Return what has arrived as one answer."""
        answer = inference_pb2.GenerateResponse()
        answer.CopyFrom(self._answer)
        answer.text = self.text
        return Completion.from_proto(answer)

    def _broken(self, error: grpc.RpcError) -> BlockdraftError:
        """Take note that the call failed; return the exception, with what had arrived."""
        self._closed = True
        return from_rpc_error(error, self._target, self._partial())

    def _partial(self) -> PartialCompletion | None:
        if not self._messages:
            return None
        return PartialCompletion(
            text=self.text,
            token_ids=tuple(self._answer.token_ids),
            log_probs=tuple(TokenLogProbs.from_proto(item) for item in self._answer.log_probs),
            request_id=self.request_id,
            model=self.model,
        )
