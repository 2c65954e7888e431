"""What has arrived of a streamed answer; shared by the sync and the async stream."""

from blockdraft_client.results import (
    Chunk,
    Completion,
    FinishReason,
    PartialCompletion,
    TokenLogProbs,
)
from blockdraft_client.usage import Usage
from blockdraft_protos.v1 import inference_pb2


class StreamState:
    """Sums up the messages of one stream."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._messages = 0
        self._texts: list[str] = []
        # The one answer the messages amount to, apart from its text, which would be copied
        # for each message.
        self._answer = inference_pb2.GenerateResponse()

    def add(self, message: inference_pb2.StreamGenerateResponse) -> Chunk:
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

    @property
    def request_id(self) -> str:
        """Identifier of the request; empty before the first message."""
        return self._answer.request_id

    @property
    def model(self) -> str:
        """Name of the model; empty before the first message."""
        return self._answer.model

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why generation ended; None before the last message."""
        return FinishReason.from_proto(self._answer.finish_reason)

    @property
    def usage(self) -> Usage | None:
        """What the request consumed; None before the last message."""
        return Usage.from_proto(self._answer.usage) if self._answer.HasField("usage") else None

    def completion(self) -> Completion:
        """Return what has arrived as one answer."""
        answer = inference_pb2.GenerateResponse()
        answer.CopyFrom(self._answer)
        answer.text = self.text
        return Completion.from_proto(answer)

    def partial(self) -> PartialCompletion | None:
        """Return what has arrived for the error that ends the stream; None when nothing has."""
        if not self._messages:
            return None
        return PartialCompletion(
            text=self.text,
            token_ids=tuple(self._answer.token_ids),
            log_probs=tuple(TokenLogProbs.from_proto(item) for item in self._answer.log_probs),
            request_id=self.request_id,
            model=self.model,
        )
