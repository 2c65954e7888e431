"""From what a caller asks for to the messages of the wire."""

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

from blockdraft_client.params import (
    ChatMessage,
    Prompt,
    SamplingParams,
    SamplingShortcuts,
    SpeculationParams,
)
from blockdraft_protos.v1 import inference_pb2

RequestT = TypeVar("RequestT", inference_pb2.GenerateRequest, inference_pb2.StreamGenerateRequest)


def prompt_message(prompt: Prompt) -> inference_pb2.Prompt:
    """Return the wire form of a prompt.

    Raises:
        TypeError: If it is neither text, nor token ids, nor messages, or a mixture.
        ValueError: If a message given as a mapping lacks a key or has others.
    """
    if isinstance(prompt, str):
        return inference_pb2.Prompt(text=prompt)
    # An empty list has no form of its own; as token ids the server names the field at fault.
    if all(isinstance(item, int) and not isinstance(item, bool) for item in prompt):
        ids = inference_pb2.TokenIds(values=[item for item in prompt if isinstance(item, int)])
        return inference_pb2.Prompt(token_ids=ids)
    messages = [_chat_message(item) for item in prompt]
    return inference_pb2.Prompt(conversation=inference_pb2.Conversation(messages=messages))


def _chat_message(item: object) -> inference_pb2.ChatMessage:
    if isinstance(item, ChatMessage):
        return inference_pb2.ChatMessage(role=item.role, content=item.content)
    if not isinstance(item, Mapping):
        raise TypeError(
            "a prompt is a string, a sequence of int, or a sequence of ChatMessage or mappings; "
            f"got an item of type {type(item).__name__}"
        )
    if set(item) != {"role", "content"}:
        raise ValueError(f'a message has exactly the keys "role" and "content", got {list(item)}')
    return inference_pb2.ChatMessage(role=item["role"], content=item["content"])


def _sampling_message(
    sampling: SamplingParams | None, shortcuts: SamplingShortcuts
) -> inference_pb2.SamplingOptions:
    """Return the wire form of `sampling`, with `shortcuts` winning over its fields."""
    params = dataclasses.replace(sampling or SamplingParams(), **shortcuts)
    return inference_pb2.SamplingOptions(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
        max_output_tokens=params.max_output_tokens,
        stop_sequences=[params.stop] if isinstance(params.stop, str) else params.stop,
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
        log_probs=params.log_probs,
    )


def _speculation_message(
    speculation: SpeculationParams | None,
) -> inference_pb2.SpeculationOptions | None:
    """Return the wire form of `speculation`."""
    if speculation is None:
        return None
    return inference_pb2.SpeculationOptions(
        disabled=speculation.disabled,
        max_draft_tokens=speculation.max_draft_tokens,
        lookup_disabled=speculation.lookup_disabled,
        learning_disabled=speculation.learning_disabled,
    )


def generation_request(
    kind: type[RequestT],
    prompt: Prompt,
    sampling: SamplingParams | None,
    speculation: SpeculationParams | None,
    model: str,
    shortcuts: SamplingShortcuts,
) -> RequestT:
    """Return the request for one answer, of the `kind` that gives it whole or as a stream."""
    return kind(
        model=model,
        prompt=prompt_message(prompt),
        sampling=_sampling_message(sampling, shortcuts),
        speculation=_speculation_message(speculation),
    )
