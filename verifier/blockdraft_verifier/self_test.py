"""The self-test: every compiled step computes the same few positions, and the bits are compared.

One text is computed into pages of the cache by the largest step. Then each shape of step computes
some positions of it anew, into pages of their own, as many at a time as its rows hold: in all of
its rows, and in a few of them. Of several rows every second one does so; those between are longer,
so that the loop over the context runs on for them. Then once more at the end of a step that is
otherwise full, since a place may decide bits too. Compared are the keys and values that all layers
left in the cache, and the log probabilities after the last position; on a slice of several hosts
the latter alone. If the target has adapters, rows that are compared use the first one, and the
others the last, or none if there is one only.

If the target denoises noise, a canvas is computed too, by each shape that holds one.

Where layers have a state, rows begin where the text had one, in slots of their own, and go on over
the end of a chunk. Each shape computes the same positions again in these slots, as after a draft
that was rejected.

A difference in one of a hundred positions is found only if so many are compared: a few at every
start, more with `--self-test`, which also tries more numbers of rows.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from blockdraft_models.decoder.delta_rule import CHUNK_TOKENS
from blockdraft_models.diffusion import NoiseDiffusion
from blockdraft_models.sampling_options import GREEDY
from blockdraft_verifier.device import kernel_attention as kernel
from blockdraft_verifier.device import portable_attention as portable
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.exactness import Exactness, find_classes
from blockdraft_verifier.scheduling.canvas import NoiseCanvas
from blockdraft_verifier.scheduling.row import Row
from blockdraft_verifier.scheduling.sequence import GenerationRequest, TokenSequence

logger = logging.getLogger(__name__)

AT_START = 8
"""Positions compared whenever steps were compiled, in seconds."""
ON_REQUEST = 128
"""Positions compared by `--self-test`, in about a minute on CPU."""
# How many rows are live, beside as many as there can be. Of three, the first and the last are
# compared, and the one between is longer.
_LIVE_AT_START = (1, 3)
_LIVE_ON_REQUEST = (1, 2, 3, 5, 7)


def self_test(runner: ModelRunner, span: int = AT_START) -> Exactness:
    """Find which compiled steps of a target give the same bits.

    It overwrites pages of the cache: no sequence may own any, and their contents must be forgotten.
    """
    probe = _Probe.of(runner, span)
    probe.compute_text()
    live = _LIVE_AT_START if span <= AT_START else _LIVE_ON_REQUEST
    signatures = {bucket: probe.signatures(bucket, live) for bucket in runner.buckets}
    canvases = {bucket: probe.canvases(bucket) for bucket in runner.buckets}
    # Steps that are too small for a canvas differ from none.
    default = canvases[max(runner.buckets, key=lambda bucket: bucket.tokens)] or {b""}
    both = {
        bucket: {
            text + canvas for text in signatures[bucket] for canvas in canvases[bucket] or default
        }
        for bucket in runner.buckets
    }
    return find_classes(runner.dtype.name, both)


def enforce(
    runner: ModelRunner, seconds: Mapping[Bucket, float], *, allow_inexact: bool
) -> Exactness:
    """Find the numerics classes, and serve one of them only; `seconds` are those of each step.

    Raises:
        InexactError: If steps differ and that cannot be mended; not with `allow_inexact`.
    """
    exactness = self_test(runner)
    if exactness.exact or allow_inexact:
        return exactness
    logger.warning("%s", exactness.summary())
    mended = exactness.mended(seconds)
    runner.serve_only(mended.classes[0])
    return mended


@dataclass(frozen=True, slots=True)
class _Probe:
    """The text, computed once into `text_pages`, and all other pages.

    `span` positions from `start` on, which begins a page, are compared.
    """

    runner: ModelRunner
    text: tuple[int, ...]
    start: int
    span: int
    text_pages: tuple[int, ...]
    spare_pages: tuple[int, ...]
    # Slots of states of the rows that are compared; none without states.
    compared_slots: range

    @classmethod
    def of(cls, runner: ModelRunner, most_span: int) -> "_Probe":
        """Choose a text that crosses a chunk of the context, if the cache has room for it."""
        size, page_count = runner.settings.page_size, runner.settings.num_pages
        by_kernel = runner.layout.attention != "portable"
        chunk = kernel.CONTEXT_BLOCK_TOKENS if by_kernel else portable.CONTEXT_CHUNK_TOKENS
        # Rows are whole canvases.
        canvas = runner.model.canvas_grain
        most_span = -(-most_span // canvas) * canvas
        most_start, slots = chunk, range(0)
        if runner.layout.states is not None:
            # From a page before a chunk of states, or from its begin over its end.
            most_span += min(size, CHUNK_TOKENS)
            most_start -= size if size < CHUNK_TOKENS else 0
            slots = range((runner.settings.scheduler.max_sequences + 1) // 2)
        # At least half of the pages stay for the rows that compute it anew.
        max_tokens = runner.settings.scheduler.max_context_tokens
        room = min(max_tokens, max(1, page_count // 2) * size)
        length = min(room, 2 * chunk + most_span) // canvas * canvas
        start = max(0, min(most_start, length - most_span)) // size * size
        span = min(most_span, length - start)
        text_pages = tuple(range(-(-length // size)))
        rng = np.random.default_rng(0)
        text = tuple(int(token) for token in rng.integers(0, runner.model.vocab_size, length))
        spare_pages = tuple(range(len(text_pages), page_count))
        return cls(runner, text, start, span, text_pages, spare_pages, slots)

    def compute_text(self) -> None:
        """Fill the text's pages, and the slots of states up to `start`."""
        self._compute_to(len(self.text), 0)
        for slot in self.compared_slots:
            self._compute_to(self.start, slot)

    def _compute_to(self, end: int, slot: int) -> None:
        bucket = max(self.runner.buckets, key=lambda bucket: bucket.tokens)
        size = self._whole(bucket.tokens)
        for first in range(0, end, size):
            stop = min(first + size, end)
            self.runner.run_in(bucket, [self._row(self.text_pages, first, stop, slot)])

    def _whole(self, token_count: int) -> int:
        """Return as many tokens as are whole canvases."""
        canvas = self.runner.model.canvas_grain
        return token_count // canvas * canvas

    def _restore(self, slots: Sequence[int]) -> None:
        """Compute states again that the compared positions have overwritten."""
        stay = self.start + self.span < (self.start // CHUNK_TOKENS + 2) * CHUNK_TOKENS
        for slot in () if stay else slots:
            self._compute_to(self.start, slot)

    def signatures(self, bucket: Bucket, live_rows: Sequence[int]) -> set[bytes]:
        """Return the signatures of compared rows, with each number of live rows and with the most.

        There is one signature if all got the same bits.
        """
        max_rows = min(bucket.rows, bucket.tokens // self.runner.model.canvas_grain)
        if self.compared_slots:
            max_rows = min(max_rows, self.runner.settings.scheduler.max_sequences)
        live = [count for count in live_rows if count < max_rows]
        digests = {
            digest for count in (*live, max_rows) for digest in self._computed(bucket, count)
        }
        return digests | set(self._computed_last(bucket))

    def canvases(self, bucket: Bucket) -> set[bytes]:
        """Return the signatures of canvases of noise behind the text, alone and side by side.

        Each is computed twice, the second time conditioned by the first. Empty if the step holds
        none.
        """
        diffusion, size = self.runner.diffusion, self.runner.settings.page_size
        if not isinstance(diffusion, NoiseDiffusion):
            return {b""}
        length, limits = diffusion.canvas_tokens, self.runner.settings.scheduler
        start = min(self.start, limits.max_context_tokens - length) // size * size
        page_count = -(-length // size)
        room = len(self.spare_pages) // page_count
        most_rows = min(bucket.rows, bucket.tokens // length, room, limits.max_sequences)
        signatures = set()
        for row_count in {min(1, most_rows), most_rows} - {0}:
            rows = []
            for slot in range(row_count):
                spare = self.spare_pages[slot * page_count :][:page_count]
                pages = [*self.text_pages[: start // size], *spare]
                canvas = NoiseCanvas.after(self.text[:start], diffusion, GREEDY)
                request = GenerationRequest("self-test", self.text[:start])
                sequence = TokenSequence(0, request, 0.0, pages=pages, state_slot=slot)
                sequence.diffusion, sequence.canvas = diffusion, canvas
                rows.append(Row(sequence, start, canvas.token_ids, 0, canvas_count=length))
            digests = [hashlib.sha256() for _ in rows]
            for step in range(2):
                for row in rows:
                    assert row.sequence.canvas is not None
                    row.sequence.canvas.step_count = step
                denoised = self.runner.run_in(bucket, rows).denoised
                assert denoised is not None
                for array in (denoised.scores, denoised.likeliest):
                    values = np.asarray(array)[: row_count * length].reshape(row_count, length)
                    for digest, of_row in zip(digests, values, strict=True):
                        digest.update(of_row.tobytes())
            signatures |= {digest.digest() for digest in digests}
        return signatures

    def _computed(self, bucket: Bucket, live_rows: int) -> Iterator[bytes]:
        # A row of more tokens than compared would need pages that are never compared.
        at_a_time = min(self.span, max(1, self._whole(bucket.tokens // live_rows)))
        row_pages = list(self._row_pages(live_rows, at_a_time))
        comparing = range(0, len(row_pages), 2)
        self._restore(self.compared_slots[: len(comparing)])
        for offset in range(0, self.span, at_a_time):
            first = self.start + offset
            stop = min(first + at_a_time, self.start + self.span)
            rows = []
            for index, pages in enumerate(row_pages):
                if index % 2:
                    end = len(self.text)
                    rows.append(self._other_row(pages, end - (stop - first), end))
                else:
                    rows.append(self._row(pages, first, stop, index // 2))
            outputs = self.runner.run_in(bucket, rows)
        for index in comparing:
            choice = self._last_choice(rows, index)
            log_probs = (np.asarray(array)[choice].tobytes() for array in outputs.log_probs)
            yield hashlib.sha256(b"".join((*self._kv_bytes(row_pages[index]), *log_probs))).digest()

    def _computed_last(self, bucket: Bucket) -> Iterator[bytes]:
        """Yield the signature of the positions at the end of a step, after as much text as fits."""
        size, spare = self.runner.settings.page_size, list(self.spare_pages)
        at_a_time = min(self.span, self._whole(bucket.tokens))
        room = bucket.tokens - at_a_time
        page_count = -(-(self.start + self.span) // size)
        if not room or page_count > len(spare):
            return
        pages, spare = spare[:page_count], spare[page_count:]
        # Other rows compute the beginning of the text. A lone row computes what comes before.
        other_rows = bucket.rows - 1
        length = self._whole(min(len(self.text), room // other_rows)) if other_rows else 0
        count = max(1, -(-length // size))
        fillers = [
            self._other_row(spare[at : at + count], 0, length)
            for at in range(0, len(spare) - count + 1, count)
            if length
        ][:other_rows]
        lead = 0 if other_rows else min(self.start, room) // size * size
        if self.compared_slots:
            lead = lead if lead == self.start else 0
        self._restore(self.compared_slots[:1])
        first_own = (self.start - lead) // size
        row_pages = (*self.text_pages[:first_own], *pages[first_own:])
        for offset in range(0, self.span, at_a_time):
            first = self.start + offset
            stop = min(first + at_a_time, self.start + self.span)
            rows = [*fillers, self._row(row_pages, first - lead, stop, 0)]
            outputs = self.runner.run_in(bucket, rows)
        choice = self._last_choice(rows, len(rows) - 1)
        log_probs = (np.asarray(array)[choice].tobytes() for array in outputs.log_probs)
        yield hashlib.sha256(b"".join((*self._kv_bytes(pages), *log_probs))).digest()

    def _row_pages(self, count: int, at_a_time: int) -> Iterator[tuple[int, ...]]:
        """Yield the pages of each row: the text's, but for those that the row writes to."""
        size = self.runner.settings.page_size
        spare = list(self.spare_pages)
        for index in range(count):
            first = (len(self.text) - at_a_time if index % 2 else self.start) // size
            page_count = len(self.text_pages) - first if index % 2 else -(-self.span // size)
            if page_count > len(spare):
                if index == 0:
                    # A cache of hardly any pages: the text is computed anew where it is.
                    yield self.text_pages
                return
            yield (*self.text_pages[:first], *(spare.pop() for _ in range(page_count)))

    def _other_row(self, pages: Sequence[int], first: int, stop: int) -> Row:
        """Return a row that is not compared, of another adapter."""
        slot, count = self.runner.settings.scheduler.max_sequences - 1, self._adapter_count
        return self._row(pages, first, stop, slot, count if count > 1 else 0)

    @property
    def _adapter_count(self) -> int:
        return len(self.runner.adapter_ranks)

    def _row(
        self, pages: Sequence[int], first: int, stop: int, slot: int, adapter: int | None = None
    ) -> Row:
        drafted = min(stop - first, self.runner.max_block) - 1
        number = min(1, self._adapter_count) if adapter is None else adapter
        request = GenerationRequest("self-test", self.text[:stop], log_probs=0, adapter=number)
        sequence = TokenSequence(0, request, 0.0, pages=list(pages), state_slot=slot)
        return Row(sequence, first, self.text[first:stop], drafted)

    def _last_choice(self, rows: Sequence[Row], index: int) -> int:
        """Return the index of the choice after the last token of a row."""
        return sum(row.draft_count + 1 for row in rows[: index + 1]) - 1

    def _kv_bytes(self, pages: Sequence[int]) -> Iterator[bytes]:
        """Yield the keys and values of the compared positions, layer after layer."""
        first = self.start // self.runner.settings.page_size
        for layer in self.runner.read_pages(pages[first:]):
            yield layer.reshape(-1, *layer.shape[2:])[: self.span].tobytes()
