"""Contents of a request: features that draft KV caches lack, and sequences to draft for.

A request for drafts brings what the last steps committed. Where a cache lacks more than one request
may bring (a prompt, or everything after the drafter came back), its features are sent piece by
piece in requests of their own, a bounded number of bytes at a time, while its sequence is decoded
plainly.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from blockdraft_models.sampling_options import Sampling
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_protos.v1 import inference_pb2
from blockdraft_verifier.device.cache import FeatureStore, Positions
from blockdraft_verifier.drafting.draft_caches import DraftCache
from blockdraft_verifier.drafting.feature_writers import MessageWriter
from blockdraft_verifier.drafting.handshake import DrafterDescription
from blockdraft_verifier.scheduling.sequence import GenerationRequest, TokenSequence

# Both keep a request far below the channel's message limit. What is being caught up is ahead of the
# next request for drafts in the drafter's queue, so there is little of it at a time.
MAX_DRAFT_BYTES = 16 * 1024 * 1024
MAX_CATCH_UP_BYTES = 4 * 1024 * 1024
# Positions that a drafter that learns gets at once, of a sequence for which nothing is drafted:
# appending a few takes it nearly as long as appending many.
LEARNING_ROWS = 64


@dataclass(frozen=True, slots=True)
class CachePart:
    """One cache's part of a request: it holds `stop` positions afterwards."""

    cache: DraftCache
    stop: int
    draft_length: int = 0

    @property
    def rows(self) -> int:
        """Positions whose features it brings."""
        return self.stop - self.cache.length


def divide(
    draft_lengths: Iterable[tuple[DraftCache, int]], drafter: DrafterDescription
) -> tuple[list[CachePart], list[DraftCache]]:
    """Return the parts of a request for drafts, and the caches that must catch up first.

    `draft_lengths` says how many tokens to draft for each cache; 0 only sends features.
    """
    parts, behind = [], []
    rows_left = MAX_DRAFT_BYTES // drafter.feature_row_bytes
    for cache, draft_length in draft_lengths:
        part = CachePart(cache, cache.sequence.committed, draft_length)
        if draft_length and part.rows <= min(rows_left, drafter.max_feature_rows):
            rows_left -= part.rows
            parts.append(part)
        else:
            behind.append(cache)
    return parts, behind


def catch_up(
    behind: Iterable[DraftCache], drafter: DrafterDescription, rows_under_way: int
) -> list[CachePart]:
    """Return the parts of a request that only appends to caches; none if it has to wait.

    `rows_under_way` counts the features of such requests that have no response yet.
    """
    rows_left = MAX_CATCH_UP_BYTES // drafter.feature_row_bytes - rows_under_way
    if not rows_under_way:
        rows_left = max(1, rows_left)
    parts = []
    for cache in behind:
        missing = cache.sequence.committed - cache.length
        rows = min(missing, rows_left, drafter.max_feature_rows)
        if rows > 0:
            rows_left -= rows
            parts.append(CachePart(cache, cache.length + rows))
    return parts


def to_learn_from(caches: Iterable[DraftCache], drafter: DrafterDescription) -> list[DraftCache]:
    """Return the caches that lack many positions, or whose sequences have ended."""
    enough = min(LEARNING_ROWS, drafter.max_feature_rows)
    return [
        cache
        for cache in caches
        if cache.sequence.finish_reason is not None
        or cache.sequence.committed - cache.length >= enough
    ]


def to_request(
    step_id: int,
    parts: Iterable[CachePart],
    released: Iterable[int],
    features: FeatureStore,
    writer: MessageWriter,
    *,
    least_chance: float = 0.0,
    learns: bool = False,
) -> pb.DraftRequest:
    """Return the request of some parts, features included.

    A draft may end where it is less likely than `least_chance` that all of it is right. With
    `learns` the request says which sequences may become training samples.
    """
    request = pb.DraftRequest(step_id=step_id, released_sequence_ids=released)
    positions = []
    for part in parts:
        sequence, start = part.cache.sequence, part.cache.length
        request.sequences.add(
            sequence_id=part.cache.cache_id,
            context_start=start,
            feature_rows=part.rows,
            anchor_token_id=sequence.tokens[part.stop],
            draft_length=part.draft_length,
            least_chance=least_chance if part.draft_length else 0.0,
            token_ids=sequence.tokens[start : part.stop],
            sampling=to_sampling(sequence.request.sampling) if part.draft_length else None,
            recycled=take_recycled(sequence) if part.draft_length else None,
            request_id="" if start else sequence.request.request_id,
            sample=to_sample_options(sequence.request) if learns and not start else None,
        )
        positions.append(Positions(sequence.pages, start, part.stop))
    if any(place.rows for place in positions):
        # Filled in where it is: a message put into another one is copied, features and all.
        writer.write(request.features, step_id, features, positions)
    return request


def to_sample_options(request: GenerationRequest) -> pb.SampleOptions | None:
    """Return the options of a request's training sample; None if it must not become one."""
    if not request.recordable:
        return None
    return pb.SampleOptions(
        completion_start=len(request.prompt), temperature=request.sampling.temperature
    )


def take_recycled(sequence: TokenSequence) -> pb.RecycledChoices | None:
    """Return the target's choices after rejected tokens since the last call, None if none."""
    if not sequence.recycled:
        return None
    positions, after, tokens = zip(*sequence.recycled, strict=True)
    sequence.recycled.clear()
    return pb.RecycledChoices(positions=positions, after_token_ids=after, token_ids=tokens)


def to_sampling(sampling: Sampling) -> inference_pb2.SamplingOptions | None:
    """Return the sampling options as the drafter takes them; None for greedy decoding."""
    if not sampling.temperature > 0.0:
        return None
    options = {name: getattr(sampling, name) for name in Sampling.__slots__}
    return inference_pb2.SamplingOptions(**options)
