"""Values that are read from messages."""

from blockdraft_client.results import Chunk, Completion, TokenSource
from blockdraft_protos.v1 import inference_pb2 as pb


def test_sources_of_tokens() -> None:
    # The last one is of a later version.
    numbers = [*pb.TokenSource.values(), 99]
    chunk = pb.StreamGenerateResponse(token_ids=range(6))
    chunk.ParseFromString(chunk.SerializeToString() + bytes([9 << 3 | 2, 6, *numbers]))
    expected = (
        TokenSource.UNKNOWN,
        TokenSource.TARGET,
        TokenSource.DRAFTER,
        TokenSource.PROMPT_LOOKUP,
        TokenSource.GRAMMAR,
        TokenSource.UNKNOWN,
    )
    assert Chunk.from_proto(chunk).token_sources == expected
    whole = pb.GenerateResponse.FromString(chunk.SerializeToString())
    completion: Completion[None] = Completion.from_proto(whole)
    assert completion.token_sources == expected
