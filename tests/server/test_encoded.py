"""What the walk over encoded bytes says is what decoding them says."""

import numpy as np
import pytest

from blockdraft_protos.v1 import inference_pb2
from blockdraft_server.sizes import MAX_FIELDS, TooManyFieldsError, encoded_size


def random_text(rng: np.random.Generator) -> str:
    return "".join(rng.choice(list("aé€😀\n"), size=rng.integers(0, 40)))


def random_request(rng: np.random.Generator) -> inference_pb2.GenerateRequest:
    request = inference_pb2.GenerateRequest(model=random_text(rng))
    match rng.integers(4):
        case 0:
            request.prompt.text = random_text(rng)
        case 1:
            ids = rng.integers(-5, 1 << 20, size=rng.integers(0, 50))
            request.prompt.token_ids.values.extend(ids.tolist())
        case 2:
            for _ in range(rng.integers(5)):
                message = request.prompt.conversation.messages.add()
                message.role, message.content = random_text(rng), random_text(rng)
    request.sampling.temperature = rng.random()
    request.sampling.seed = int(rng.integers(-(2**62), 2**62))
    request.sampling.stop_sequences.extend(random_text(rng) for _ in range(rng.integers(4)))
    constraint = request.sampling.constraint
    match rng.integers(4):
        case 0:
            constraint.json_schema = random_text(rng)
        case 1:
            constraint.choice.texts.extend(random_text(rng) for _ in range(rng.integers(4)))
        case 2:
            constraint.structural_tags.tags.add(begin=random_text(rng))
            constraint.free_text.end = random_text(rng)
        case _:
            request.sampling.ClearField("constraint")
    return request


def text_bytes(prompt: inference_pb2.Prompt) -> int:
    texts = [prompt.text, *(message.content for message in prompt.conversation.messages)]
    return sum(len(text.encode()) for text in texts)


def test_sizes_are_those_of_the_decoded_request() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        request = random_request(rng)
        size = encoded_size(request.SerializeToString())
        ids = request.prompt.token_ids
        assert size.text_bytes == text_bytes(request.prompt)
        # Tag and length of the packed list are not of it.
        overhead = 0 if not ids.values else 2 if size.id_bytes < 128 else 3
        assert size.id_bytes == ids.ByteSize() - overhead
        assert size.constraint_bytes == request.sampling.constraint.ByteSize()
        apart = request.prompt.ByteSize() + size.constraint_bytes
        assert size.other_bytes == request.ByteSize() - apart


def test_what_is_written_twice_is_added_up() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        first, second = random_request(rng), random_request(rng)
        size = encoded_size(first.SerializeToString() + second.SerializeToString())
        assert size.text_bytes == text_bytes(first.prompt) + text_bytes(second.prompt)


def test_garbage_is_refused_or_measured_and_never_more() -> None:
    rng = np.random.default_rng(5)
    for _ in range(2000):
        data = bytearray(random_request(rng).SerializeToString())
        for _ in range(rng.integers(1, 4)):
            if data:
                data[rng.integers(len(data))] = rng.integers(256)
        data = data[: rng.integers(len(data) + 1)]
        try:
            size = encoded_size(bytes(data))
        except ValueError:
            continue
        apart = size.text_bytes + size.id_bytes + size.constraint_bytes
        assert 0 <= apart + size.other_bytes <= 2 * len(data)


def test_whatever_decodes_can_be_walked() -> None:
    rng = np.random.default_rng(6)
    decoded = 0
    for _ in range(2000):
        data = bytearray(random_request(rng).SerializeToString())
        data[rng.integers(len(data))] = rng.integers(256)
        try:
            inference_pb2.GenerateRequest.FromString(bytes(data))
        except Exception:
            continue
        decoded += 1
        encoded_size(bytes(data))
    assert decoded > 100


@pytest.mark.parametrize("field", [b"\x08\x07", b"\x0a\x00"])
def test_a_walk_is_not_long(field: bytes) -> None:
    """Many small fields at each level: ids that are not packed, messages without content."""
    for tags in ((0x12, 0x12), (0x12, 0x1A)):
        data = field * (MAX_FIELDS + 1)
        for tag in reversed(tags):
            data = bytes([tag]) + varint(len(data)) + data
        with pytest.raises(TooManyFieldsError):
            encoded_size(data)


def test_what_has_too_many_parts_to_be_looked_at_is_no_constraint() -> None:
    texts = [""] * (MAX_FIELDS + 1)
    for sampling in (
        inference_pb2.SamplingOptions(
            constraint=inference_pb2.OutputConstraint(choice=inference_pb2.Choices(texts=texts))
        ),
        inference_pb2.SamplingOptions(
            constraint=inference_pb2.OutputConstraint(regex="a"), stop_sequences=texts
        ),
    ):
        request = inference_pb2.GenerateRequest(sampling=sampling)
        size = encoded_size(request.SerializeToString())
        assert (size.constraint_bytes, size.other_bytes) == (0, request.ByteSize())


def varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
