"""Right requests to each service, from which wrong ones are made."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import ml_dtypes
import numpy as np
from tools.fuzz.calls import Method

from blockdraft_protos.v1 import drafter_pb2, inference_pb2, verifier_pb2
from blockdraft_protos.v1.drafter_pb2_grpc import DrafterServiceStub
from blockdraft_protos.v1.inference_pb2_grpc import InferenceServiceStub
from blockdraft_protos.v1.verifier_pb2_grpc import VerifierServiceStub

Known = Callable[[], Awaitable[object]]
_KNOWN_SECONDS = 60.0


def inference_methods() -> tuple[Method, ...]:
    """Return the methods of the public service."""
    sampling = inference_pb2.SamplingOptions(
        temperature=0.7,
        top_k=20,
        top_p=0.9,
        min_p=0.05,
        seed=7,
        max_output_tokens=4,
        stop_sequences=["z"],
        stop_token_ids=[5],
        log_probs=2,
    )
    prompts = (
        inference_pb2.Prompt(text="a duck"),
        inference_pb2.Prompt(token_ids=inference_pb2.TokenIds(values=[97, 98, 99])),
        inference_pb2.Prompt(
            conversation=inference_pb2.Conversation(
                messages=[inference_pb2.ChatMessage(role="user", content="why?")]
            )
        ),
    )
    speculation = inference_pb2.SpeculationOptions(max_draft_tokens=3)
    asked: dict[str, list[tuple[Any, ...]]] = {"Generate": [], "StreamGenerate": [], "Tokenize": []}
    for prompt in prompts:
        options: dict[str, Any] = {
            "prompt": prompt,
            "sampling": sampling,
            "speculation": speculation,
        }
        asked["Generate"].append((inference_pb2.GenerateRequest(**options),))
        asked["StreamGenerate"].append((inference_pb2.StreamGenerateRequest(**options),))
        asked["Tokenize"].append((inference_pb2.TokenizeRequest(prompt=prompt),))
    asked["GetModel"] = [(inference_pb2.GetModelRequest(),)]
    return _methods("InferenceService", asked)


def verifier_methods() -> tuple[Method, ...]:
    """Return the methods of the verifier."""
    begin = verifier_pb2.SequenceRequest(
        request_id="r",
        prompt_token_ids=[1, 2, 3],
        emitted_token_ids=[4],
        sampling=inference_pb2.SamplingOptions(
            temperature=0.7,
            top_p=0.9,
            min_p=0.1,
            seed=3,
            max_output_tokens=6,
            stop_token_ids=[9],
            log_probs=1,
        ),
        speculation=inference_pb2.SpeculationOptions(max_draft_tokens=2),
        cache_salt=b"salt",
    )
    first = verifier_pb2.DecodeRequest(sequence_id=1, begin=begin)
    second = verifier_pb2.DecodeRequest(sequence_id=2, begin=begin)
    cancel = verifier_pb2.DecodeRequest(sequence_id=1, cancel=verifier_pb2.CancelSequence())
    return _methods(
        "VerifierService",
        {
            "Decode": [(first,), (first, second), (first, second, cancel)],
            "Describe": [(verifier_pb2.VerifierServiceDescribeRequest(),)],
            "GetLoad": [(verifier_pb2.GetLoadRequest(),)],
        },
    )


def drafter_methods(
    description: drafter_pb2.DrafterServiceDescribeResponse, target_fingerprint: str
) -> tuple[Method, ...]:
    """Return the methods of a drafter that describes itself so."""
    rows, width = 2, description.feature_width
    features = np.ones((2 * rows, width), ml_dtypes.bfloat16)
    tensor = drafter_pb2.Tensor(
        shape=features.shape,
        dtype=drafter_pb2.DATA_TYPE_BFLOAT16,
        data=features.tobytes(),
    )
    sampling = inference_pb2.SamplingOptions(temperature=0.7, top_p=0.9, min_p=0.1, seed=3)

    def step(number: int) -> drafter_pb2.DraftRequest:
        sequences = [
            drafter_pb2.SequenceDraft(
                sequence_id=sequence,
                context_start=rows * (number - 1),
                feature_rows=rows,
                anchor_token_id=5,
                draft_length=1,
                token_ids=[1, 2],
                sampling=sampling,
            )
            for sequence in (1, 2)
        ]
        return drafter_pb2.DraftRequest(
            step_id=number, sequences=sequences, features=tensor, released_sequence_ids=[9]
        )

    return _methods(
        "DrafterService",
        {
            "Draft": [(step(1),), (step(1), step(2)), (step(1), step(2), step(3))],
            "Describe": [
                (drafter_pb2.DrafterServiceDescribeRequest(target_fingerprint=target_fingerprint),)
            ],
            "FetchProjection": [
                (
                    drafter_pb2.FetchProjectionRequest(
                        fingerprint=description.projection.fingerprint
                    ),
                )
            ],
        },
    )


def known_response(channel: grpc.aio.Channel) -> Known:
    """Return a call of the public service whose response is always the same."""
    stub: Any = InferenceServiceStub(channel)
    request = inference_pb2.GenerateRequest(
        prompt=inference_pb2.Prompt(text="known"),
        sampling=inference_pb2.SamplingOptions(seed=1, temperature=1.0, max_output_tokens=8),
    )

    async def ask() -> object:
        return (await stub.Generate(request, timeout=_KNOWN_SECONDS)).text

    return ask


def known_tokens(channel: grpc.aio.Channel) -> Known:
    """Return what asks a verifier for tokens that are always the same."""
    stub: Any = VerifierServiceStub(channel)
    begin = verifier_pb2.SequenceRequest(
        prompt_token_ids=[10, 11, 12],
        sampling=inference_pb2.SamplingOptions(temperature=1.0, seed=1, max_output_tokens=8),
    )
    request = verifier_pb2.DecodeRequest(sequence_id=1, begin=begin)

    async def ask() -> object:
        call = stub.Decode(_only(request), timeout=_KNOWN_SECONDS)
        return [
            token
            async for response in call
            for sequence in response.sequences
            for token in sequence.token_ids
        ]

    return ask


def known_draft(channel: grpc.aio.Channel, methods: tuple[Method, ...]) -> Known:
    """Return a call of a drafter whose draft is always the same."""
    stub: Any = DrafterServiceStub(channel)
    [request] = methods[0].requests[0]

    async def ask() -> object:
        call = stub.Draft(_only(request), timeout=_KNOWN_SECONDS)
        # Slots may be in use; each other response is the same.
        return [[list(draft.token_ids) for draft in response.drafts] async for response in call]

    async def until_served() -> object:
        while len((response := await ask())[0]) < 2:  # type: ignore[index]
            await asyncio.sleep(0.05)
        return response

    return until_served


async def _only(request: Any) -> Any:
    yield request


def _methods(service: str, asked: dict[str, list[tuple[Any, ...]]]) -> tuple[Method, ...]:
    return tuple(
        Method(f"/blockdraft.v1.{service}/{name}", tuple(requests))
        for name, requests in asked.items()
    )
