"""The state of an engine, for a person who has to find out what it does.

Read from another thread while the engine runs: figures may belong to neighbouring steps, and an
engine whose step never ends is shown all the same.
"""

import contextlib
import time
from collections.abc import Mapping

from blockdraft_verifier.drafting.sync import DraftSync
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.engine.policy import DraftLengths
from blockdraft_verifier.scheduling.scheduler import Scheduler
from blockdraft_verifier.scheduling.sequence import TokenSequence


def engine_state(engine: Engine) -> Mapping[str, object]:
    """Return scheduler, sequences, drafter and cost model as values that JSON can hold."""
    load, now, exactness = engine.load(), time.perf_counter(), engine.exactness
    numerics = "not tested" if exactness is None else exactness.summary()
    scheduler = engine.scheduler
    return {
        "step": {"overdue": engine.watch.overdue, "numerics": numerics},
        "pages": {"used": load.used_pages, "total": load.total_pages},
        "waiting": [_sequence(sequence, now) for sequence in _waiting(scheduler)],
        "running": [_sequence(sequence, now) for sequence in tuple(scheduler.running)],
        "drafter": None if engine.drafts is None else _drafter(engine.drafts),
        "drafting": _drafting(engine.lengths),
    }


def _waiting(scheduler: Scheduler) -> tuple[TokenSequence, ...]:
    """Return the waiting sequences, though their queues may change meanwhile."""
    while True:
        with contextlib.suppress(RuntimeError):
            return tuple(scheduler.waiting)


def _sequence(sequence: TokenSequence, now: float) -> dict[str, object]:
    return {
        "request_id": sequence.request.request_id,
        "sequence": sequence.sequence_id,
        "seconds": round(now - sequence.arrival_time, 3),
        "prompt_tokens": len(sequence.request.prompt),
        "output_tokens": sequence.output_count,
        "committed_tokens": sequence.committed,
        "pages": len(sequence.pages),
        "decoding": sequence.decoding,
        "replay": sequence.request.replay,
        "draftable": sequence.draftable,
        "awaits_draft": sequence.awaiting_draft,
    }


def _drafter(drafts: DraftSync) -> dict[str, object]:
    attached = drafts.description
    return {
        "attached": None if attached is None else f"{attached.method}:{attached.fingerprint}",
        "left_alone_seconds": round(drafts.left_alone_seconds, 3),
        "unanswered_requests": drafts.unanswered,
        "draft_caches": [
            {
                "cache": cache.cache_id,
                "request_id": cache.sequence.request.request_id,
                "tokens": cache.length,
                "refusals": cache.refusals,
            }
            for cache in drafts.caches
        ],
    }


def _drafting(lengths: DraftLengths) -> dict[str, object]:
    costs = lengths.costs
    return {
        "acceptance_by_position": [round(rate, 3) for rate in lengths.acceptance],
        "milliseconds": None if costs is None else costs.milliseconds(),
    }
