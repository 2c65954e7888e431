"""A verifier described for callers: its numerics, its drafter, and whether drafting pays."""

from blockdraft_protos.v1 import inference_pb2 as pb
from blockdraft_verifier.drafting.handshake import DrafterDescription
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.exactness import Exactness
from blockdraft_verifier.requests import SOURCES


def exactness_message(exactness: Exactness) -> pb.ModelExactness:
    """Return the result of the self-test."""
    return pb.ModelExactness(
        exact=exactness.exact,
        dtype=exactness.dtype,
        classes=[" ".join(map(str, shapes)) for shapes in exactness.classes],
        padded=map(str, exactness.padded),
    )


def drafter_message(drafter: DrafterDescription) -> pb.DraftModel:
    """Return the attached drafter."""
    return pb.DraftModel(
        method=drafter.method,
        block_size=drafter.block_size,
        fingerprint=drafter.fingerprint,
        trained=drafter.trained,
        version=drafter.version,
    )


def drafting_message(engine: Engine) -> pb.Drafting:
    """Return whether the drafter is asked now, else why not, and the tokens of each source."""
    state, reason = _state(engine)
    sources = [
        pb.SourceCounts(
            source=SOURCES[source],
            drafts=counts.drafts,
            drafted_tokens=counts.drafted,
            accepted_tokens=sum(counts.accepted),
            accepted_per_position=counts.accepted,
        )
        for source, counts in engine.metrics.source_counts.items()
        if counts.drafts
    ]
    return pb.Drafting(state=state, reason=reason, sources=sources)


def _state(engine: Engine) -> tuple[pb.DraftingState.ValueType, str]:
    drafts = engine.drafts
    if engine.scheduler.diffusion is not None:
        reason = f"the target denoises {engine.scheduler.canvas_tokens} tokens at a time"
        return pb.DRAFTING_STATE_WITHOUT_DRAFTER, reason
    if drafts is None:
        return pb.DRAFTING_STATE_WITHOUT_DRAFTER, "none was started"
    if drafts.description is None:
        return pb.DRAFTING_STATE_WITHOUT_DRAFTER, "it is away, or still loading"
    seconds = drafts.left_alone_seconds
    if seconds > 0:
        reason = f"the drafter was late, and is asked again in {seconds:.1f} s"
        return pb.DRAFTING_STATE_PAUSED, reason
    reason = engine.lengths.pause_reason
    return (pb.DRAFTING_STATE_PAUSED if reason else pb.DRAFTING_STATE_ON), reason
