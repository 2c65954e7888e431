"""A streamed completion."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import grpc

from blockdraft_client.constraints import OutputConstraint, ParsedT
from blockdraft_client.error_mapping import from_rpc_error
from blockdraft_client.errors import BlockdraftError
from blockdraft_client.parsing import parsed_completion
from blockdraft_client.results import (
    Chunk,
    Completion,
    FinishReason,
    PartialCompletion,
    log_probs_from,
)
from blockdraft_client.usage import Usage
from blockdraft_protos.v1 import inference_pb2

if TYPE_CHECKING:
    from grpc import _CallIterator

    StreamCall = _CallIterator[inference_pb2.StreamGenerateResponse]

CallT = TypeVar("CallT")


class StreamedCompletion(Generic[CallT, ParsedT]):
    """The arrived part of a streamed completion; `Stream` and `AsyncStream` add the waiting."""

    def __init__(
        self, call: CallT, address: str, deadline: str, form: OutputConstraint | None = None
    ) -> None:
        """Read `call`, which was made to `address` with this deadline, in words.

        The whole completion is parsed by `form`.
        """
        self._call = call
        self._address = address
        self._deadline = deadline
        self._form = form
        self._closed = False
        self._messages = 0
        self._texts: list[str] = []
        # The one completion the messages amount to, apart from its text, which would be copied
        # for each message.
        self._whole = inference_pb2.GenerateResponse()

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    @property
    def usage(self) -> Usage | None:
        """Tokens, steps and time of the request; None before the last chunk."""
        return Usage.from_proto(self._whole.usage) if self._whole.HasField("usage") else None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why generation ended; None before the last chunk."""
        return FinishReason.from_proto(self._whole.finish_reason)

    @property
    def request_id(self) -> str:
        """Identifier of the request; empty before the first chunk."""
        return self._whole.request_id

    @property
    def model(self) -> str:
        """Name of the model that answers; empty before the first chunk."""
        return self._whole.model

    def _add(self, message: inference_pb2.StreamGenerateResponse) -> Chunk:
        """Take in one message and return its chunk."""
        self._messages += 1
        self._texts.append(message.text)
        whole = self._whole
        whole.request_id = message.request_id or whole.request_id
        whole.model = message.model or whole.model
        whole.token_ids.extend(message.token_ids)
        whole.log_probs.extend(message.log_probs)
        whole.prompt_log_probs.extend(message.prompt_log_probs)
        whole.token_sources.extend(message.token_sources)
        whole.finish_reason = message.finish_reason or whole.finish_reason
        if message.HasField("usage"):
            whole.usage.CopyFrom(message.usage)
        return Chunk.from_proto(message)

    def _completion(self) -> Completion[ParsedT]:
        """Return the messages so far as one completion."""
        whole = inference_pb2.GenerateResponse()
        whole.CopyFrom(self._whole)
        whole.text = self.text
        return parsed_completion(whole, self._form)

    def _broken(self, error: grpc.RpcError) -> BlockdraftError:
        """Take note that the call failed; return the exception, with what had arrived."""
        self._closed = True
        return from_rpc_error(error, self._address, self._deadline, self._partial())

    def _partial(self) -> PartialCompletion | None:
        if not self._messages:
            return None
        return PartialCompletion(
            text=self.text,
            token_ids=tuple(self._whole.token_ids),
            log_probs=log_probs_from(self._whole),
            request_id=self.request_id,
            model=self.model,
        )


class Stream(StreamedCompletion["StreamCall", ParsedT], Iterator[Chunk]):
    """A completion that arrives in chunks; also a context manager.

    Leaving the `for` loop or the `with` block early cancels the call, which frees what the
    server holds for it. `usage`, `finish_reason` and so on are complete after the last chunk.
    """

    def __enter__(self) -> Self:
        """Return the stream."""
        return self

    def __exit__(self, *error: object) -> None:
        """Cancel the call unless it has ended."""
        self.close()

    def __iter__(self) -> Iterator[Chunk]:
        """Yield the chunks to come."""
        # Not `self`: a generator learns at once that the loop over it was left.
        try:
            while (chunk := next(self, None)) is not None:
                yield chunk
        finally:
            self.close()

    def __next__(self) -> Chunk:
        """Wait for the next chunk; a `BlockdraftError` has as `partial` what had arrived."""
        if self._closed:
            raise StopIteration
        try:
            return self._add(next(self._call))
        except StopIteration:
            self._closed = True
            raise
        except grpc.RpcError as error:
            if self._closed:  # by another thread
                raise StopIteration from None
            raise self._broken(error) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Cancel the call unless it has ended."""
        self._closed = True
        self._call.cancel()

    def completion(self) -> Completion[ParsedT]:
        """Wait for the rest and return the whole completion.

        `InvalidOutputError` if it is not what `response_format` asks for.
        """
        for _ in self:
            pass
        return self._completion()
