"""The description of the served model, as its verifier gave it, for callers."""

from blockdraft_protos.v1 import inference_pb2, verifier_pb2
from blockdraft_runtime import version


def model_details(
    served_name: str, description: verifier_pb2.VerifierServiceDescribeResponse | None
) -> inference_pb2.GetModelResponse:
    """Return the description; the name and the version alone if no verifier was ready yet."""
    response = inference_pb2.GetModelResponse(model=served_name, version=version())
    if description is None:
        return response
    response.target_fingerprint = description.target_fingerprint
    response.vocabulary_size = description.vocabulary_size
    response.max_context_tokens = description.max_context_tokens
    response.adapters.extend(description.adapters)
    for name in ("drafter", "exactness", "drafting"):
        if description.HasField(name):
            getattr(response, name).CopyFrom(getattr(description, name))
    return response
