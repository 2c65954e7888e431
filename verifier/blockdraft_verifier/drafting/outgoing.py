"""What goes into a request: features that contexts lack, and for whom to draft.

A request for drafts brings what the last steps committed. A context that lacks more than one
request may bring (a prompt, or everything after the drafter came back) is sent piece by piece in
requests of its own, a bounded number of bytes at a time, while its sequence is decoded plainly.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from blockdraft_models.sampling_options import Sampling
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.device.cache import FeatureStore, Positions
from blockdraft_verifier.drafting.draft_caches import Context
from blockdraft_verifier.drafting.feature_writers import FeatureWriter
from blockdraft_verifier.drafting.handshake import DrafterDescription
from blockdraft_verifier.scheduling.sequence import GenerationRequest

# Both keep a request far below the channel's message limit. What is being caught up is ahead of the
# next request for drafts in the drafter's queue, so there is little of it at a time.
MAX_DRAFT_BYTES = 16 * 1024 * 1024
MAX_CATCH_UP_BYTES = 4 * 1024 * 1024
# Of a sequence for which nothing is drafted, a drafter that learns gets so many positions at once:
# appending a few costs it hardly less than appending many.
LEARNING_ROWS = 64


@dataclass(frozen=True, slots=True)
class Part:
    """One context's part of a request: it holds `stop` positions afterwards."""

    context: Context
    stop: int
    draft_length: int = 0

    @property
    def rows(self) -> int:
        """Positions whose features it brings."""
        return self.stop - self.context.length


def divide(
    wanted: Iterable[tuple[Context, int]], drafter: DrafterDescription
) -> tuple[list[Part], list[Context]]:
    """Return the parts of a request for drafts, and the contexts that must catch up first.

    `wanted` says how many tokens to draft for each context; 0 only sends features.
    """
    parts, behind = [], []
    rows_left = MAX_DRAFT_BYTES // drafter.feature_row_bytes
    for context, draft_length in wanted:
        part = Part(context, context.sequence.committed, draft_length)
        if draft_length and part.rows <= min(rows_left, drafter.max_feature_rows):
            rows_left -= part.rows
            parts.append(part)
        else:
            behind.append(context)
    return parts, behind


def catch_up(
    behind: Iterable[Context], drafter: DrafterDescription, rows_under_way: int
) -> list[Part]:
    """Return the parts of a request that only appends to contexts; none if it has to wait.

    `rows_under_way` counts the features of such requests that are not answered yet.
    """
    rows_left = MAX_CATCH_UP_BYTES // drafter.feature_row_bytes - rows_under_way
    if not rows_under_way:
        rows_left = max(1, rows_left)
    parts = []
    for context in behind:
        missing = context.sequence.committed - context.length
        rows = min(missing, rows_left, drafter.max_feature_rows)
        if rows > 0:
            rows_left -= rows
            parts.append(Part(context, context.length + rows))
    return parts


def to_learn_from(contexts: Iterable[Context], drafter: DrafterDescription) -> list[Context]:
    """Return the contexts that lack so much, or whose sequences have ended, that it is sent."""
    enough = min(LEARNING_ROWS, drafter.max_feature_rows)
    return [
        context
        for context in contexts
        if context.sequence.finish_reason is not None
        or context.sequence.committed - context.length >= enough
    ]


def to_request(
    step_id: int,
    parts: Iterable[Part],
    released: Iterable[int],
    features: FeatureStore,
    writer: FeatureWriter,
    *,
    least_chance: float = 0.0,
    learns: bool = False,
) -> pb.DraftRequest:
    """Return the request of some parts, features included.

    Drafts may end where it is less likely than `least_chance` that all of them is right. A drafter
    that learns is told what it may record.
    """
    request = pb.DraftRequest(step_id=step_id, released_sequence_ids=released)
    positions = []
    for part in parts:
        sequence, start = part.context.sequence, part.context.length
        request.sequences.add(
            sequence_id=part.context.context_id,
            context_start=start,
            feature_rows=part.rows,
            anchor_token_id=sequence.tokens[part.stop],
            draft_length=part.draft_length,
            least_chance=least_chance if part.draft_length else 0.0,
            token_ids=sequence.tokens[start : part.stop],
            sampling=to_sampling(sequence.request.sampling) if part.draft_length else None,
            request_id="" if start else sequence.request.request_id,
            recording=to_recording(sequence.request) if learns and not start else None,
        )
        positions.append(Positions(sequence.pages, start, part.stop))
    if any(place.rows for place in positions):
        # Filled in where it is: a message put into another one is copied, features and all.
        writer.write(request.features, step_id, features, positions)
    return request


def to_recording(request: GenerationRequest) -> pb.SampleOptions | None:
    """Return what a drafter that learns may know of a request; None if it is to record nothing."""
    if not request.recordable:
        return None
    return pb.SampleOptions(
        completion_start=len(request.prompt), temperature=request.sampling.temperature
    )


def to_sampling(sampling: Sampling) -> pb.DraftSampling | None:
    """Return how a sequence's tokens will be chosen, in the drafter's words; None for greedily."""
    if not sampling.temperature > 0.0:
        return None
    return pb.DraftSampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed & (2**64 - 1),
    )
