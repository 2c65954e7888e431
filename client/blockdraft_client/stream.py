"""A streamed answer."""

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

import grpc

from blockdraft_client.results import Chunk, Completion
from blockdraft_client.wire.streamed_answer import StreamedAnswer

if TYPE_CHECKING:
    from grpc import _CallIterator

    from blockdraft_protos.v1 import inference_pb2

    StreamCall = _CallIterator[inference_pb2.StreamGenerateResponse]


class Stream(StreamedAnswer["StreamCall"], Iterator[Chunk]):
    """An answer that arrives in chunks; also a context manager.

    Leaving the `for` loop or the `with` block early cancels the call, which frees what the
    server holds for it. `usage`, `finish_reason` and so on are complete after the last chunk.
    """

    def __enter__(self) -> "Stream":
        """Return the stream."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        """Wait for the next chunk.

        Raises:
            BlockdraftError: If the call fails; `partial` is what had arrived.
        """
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

    def completion(self) -> Completion:
        """Wait for the rest and return the whole answer."""
        for _ in self:
            pass
        return self._completion()
