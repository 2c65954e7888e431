"""From vLLM's messages to ours and back. What is not supported is refused by name, never ignored.

vLLM's defaults are not ours: its temperature is 1 where it is unset, and zero means "off" or "the
default" for fields that cannot be unset.
"""

from collections.abc import Iterator, Sequence

from blockdraft_protos.v1 import inference_pb2
from blockdraft_protos.vllm import vllm_engine_pb2 as pb
from blockdraft_runtime.status import invalid_argument
from blockdraft_server.completion import FINISH_NAMES
from blockdraft_server.constraints import structural_tags
from blockdraft_server.request import MAX_COMPLETIONS, check_request

ABORTED = "abort"
_MOST = (1 << 31) - 1
# The fields of a request that are honoured.
_FIELDS = frozenset(("request_id", "tokenized", "text", "sampling_params", "stream"))
_SAMPLING = frozenset(
    (
        *("temperature", "top_p", "top_k", "min_p", "seed", "n", "logprobs"),
        *("max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos"),
        *("repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias"),
        # For the gateway, which makes text of tokens.
        *("skip_special_tokens", "spaces_between_special_tokens"),
        *("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"),
        # A grammar begins with the first token, whatever this says.
        "grammar_from_first_token",
    )
)


def request_of(request: pb.GenerateRequest) -> tuple[inference_pb2.StreamGenerateRequest, int]:
    """Return our request and the number of its completions; `ServiceError` for what is refused."""
    for field in _unsupported(request):
        raise invalid_argument(field, f"{field} is not supported here")
    sampling = request.sampling_params
    count = sampling.n or 1
    if count > MAX_COMPLETIONS:
        raise invalid_argument(
            "sampling_params.n", f"n must be at most {MAX_COMPLETIONS}, got {count}", value=count
        )
    ours = _request(request)
    check_request(ours)
    return ours, count


def chunk_of(message: inference_pb2.StreamGenerateResponse, index: int) -> pb.GenerateResponse:
    """Return the tokens of one of our messages, for completion number `index`."""
    return pb.GenerateResponse(
        chunk=pb.GenerateStreamChunk(
            token_ids=message.token_ids,
            completion_tokens=len(message.token_ids),
            output_logprobs=_log_probs(message.log_probs),
            index=index,
        )
    )


def complete_of(message: inference_pb2.StreamGenerateResponse, index: int) -> pb.GenerateResponse:
    """Return the end of completion number `index`, with the tokens that `message` holds."""
    usage = message.usage
    complete = pb.GenerateComplete(
        output_ids=message.token_ids,
        finish_reason=FINISH_NAMES[message.finish_reason],
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=len(message.token_ids),
        cached_tokens=usage.cached_prompt_tokens,
        output_logprobs=_log_probs(message.log_probs),
        index=index,
        spec_accepted_tokens=usage.accepted_tokens,
        spec_draft_tokens=usage.drafted_tokens,
    )
    return pb.GenerateResponse(complete=complete)


def aborted(index: int) -> pb.GenerateResponse:
    """Return the end of a completion that was aborted."""
    return pb.GenerateResponse(complete=pb.GenerateComplete(finish_reason=ABORTED, index=index))


def _request(request: pb.GenerateRequest) -> inference_pb2.StreamGenerateRequest:
    sampling = request.sampling_params
    ours = inference_pb2.SamplingOptions(
        temperature=sampling.temperature if sampling.HasField("temperature") else 1.0,
        # Far beyond any vocabulary.
        top_k=min(sampling.top_k, _MOST),
        top_p=sampling.top_p or 1.0,
        min_p=sampling.min_p,
        stop_sequences=sampling.stop,
        stop_token_ids=_ids("sampling_params.stop_token_ids", sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        repetition_penalty=sampling.repetition_penalty or 1.0,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        logit_bias=sampling.logit_bias,
        min_tokens=min(sampling.min_tokens, _MOST),
        constraint=_constraint(sampling),
    )
    if sampling.HasField("max_tokens"):
        # More than the context holds is reduced to that.
        ours.max_output_tokens = min(sampling.max_tokens, _MOST)
    if sampling.HasField("seed"):
        ours.seed = sampling.seed
    if sampling.HasField("logprobs"):
        ours.log_probs = sampling.logprobs
    prompt = inference_pb2.Prompt()
    if request.WhichOneof("input") == "text":
        prompt.text = request.text
    else:
        ids = _ids("tokenized.input_ids", request.tokenized.input_ids)
        prompt.token_ids.values.extend(ids)
    return inference_pb2.StreamGenerateRequest(prompt=prompt, sampling=ours)


def _constraint(sampling: pb.SamplingParams) -> inference_pb2.OutputConstraint | None:
    """Return the constraint on the completion; schemas and grammars are as ours."""
    kind = sampling.WhichOneof("constraint")
    if kind is None:
        return None
    value = getattr(sampling, kind)
    if kind == "structural_tag":
        tags = structural_tags(value, f"sampling_params.{kind}")
        return inference_pb2.OutputConstraint(structural_tags=tags)
    if kind == "choice":
        choice = inference_pb2.Choices(texts=value.choices)
        return inference_pb2.OutputConstraint(choice=choice)
    return inference_pb2.OutputConstraint(**{kind: value})


def _ids(field: str, ids: Sequence[int]) -> Sequence[int]:
    """Return token ids; one too large for ours, which are signed, is refused."""
    if ids and max(ids) > _MOST:
        raise invalid_argument(field, f"{field} holds {max(ids)}, which is no token id")
    return ids


def _unsupported(request: pb.GenerateRequest) -> Iterator[str]:
    """Yield the names of fields that this server does not support."""
    for field, value in request.ListFields():
        if field.name not in _FIELDS and not (field.name == "data_parallel_rank" and value == 0):
            yield field.name
    for field, _ in request.sampling_params.ListFields():
        if field.name not in _SAMPLING:
            yield f"sampling_params.{field.name}"


def _log_probs(tokens: Sequence[inference_pb2.TokenLogProbs]) -> pb.OutputLogProbs | None:
    if not tokens:
        return None
    return pb.OutputLogProbs(
        token_logprobs=[token.chosen.log_prob for token in tokens],
        token_ids=[token.chosen.token_id for token in tokens],
        top_logprobs=[
            pb.TopLogProbs(
                values=[rival.log_prob for rival in token.alternatives],
                token_ids=[rival.token_id for rival in token.alternatives],
            )
            for token in tokens
        ],
    )
