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
    if description.HasField("drafter"):
        drafter = description.drafter
        response.drafter.method = drafter.method
        response.drafter.block_size = drafter.block_size
        response.drafter.fingerprint = drafter.fingerprint
        response.drafter.trained = drafter.trained
        response.drafter.version = drafter.version
    if description.HasField("exactness"):
        exactness = description.exactness
        response.exactness.exact = exactness.exact
        response.exactness.dtype = exactness.dtype
        response.exactness.classes.extend(" ".join(group.steps) for group in exactness.classes)
        response.exactness.padded.extend(exactness.padded)
    return response
