"""The plan of the next step: which tokens of which sequences run; pure Python.

Continuous batching: every step takes all decoding sequences first (anchor and draft), then spends
what is left of the token budget on prompts, oldest first, in chunks, which are small where they
would hold the decoding sequences up. A waiting sequence gets a slot when its tenant's turn has come
(`waiting`). When pages run out the youngest sequence is preempted: it gives its pages back and is
computed again later, from its tokens, to the same output. The background gives way to all others:
it gets slots and prompt tokens last and is preempted first, also to let waiting sequences run.
"""

import itertools
from collections.abc import Iterable
from dataclasses import replace

from blockdraft_models.diffusion import Diffusion, MaskDiffusion, NoiseDiffusion
from blockdraft_runtime.settings.verifier import SchedulerSettings
from blockdraft_verifier.scheduling.canvas import Canvas, canvas_after
from blockdraft_verifier.scheduling.grammar import Guided
from blockdraft_verifier.scheduling.pages import PageAllocator, page_hash, root_name
from blockdraft_verifier.scheduling.prompts import PromptRoom, prefill_chunk
from blockdraft_verifier.scheduling.row import Row, RowResult, SequenceProgress
from blockdraft_verifier.scheduling.sequence import (
    Draft,
    FinishReason,
    RecycledChoice,
    TokenSequence,
    end_at,
    end_without_parser,
    no_pages,
)
from blockdraft_verifier.scheduling.states import StateSlots
from blockdraft_verifier.scheduling.waiting import WaitingSequences


class Scheduler:
    """Admits, batches, preempts and advances sequences."""

    def __init__(
        self,
        settings: SchedulerSettings,
        pages: PageAllocator,
        slots: StateSlots | None = None,
        diffusion: Diffusion | None = None,
    ) -> None:
        """Schedule onto `pages`, which must hold one sequence of full length.

        Without `slots`, the target has no states. With `diffusion` sequences are denoised, canvas
        after canvas.
        """
        if settings.max_context_tokens > pages.num_pages * pages.page_size:
            raise ValueError(
                f"{pages.num_pages} pages of {pages.page_size} tokens cannot hold one sequence of "
                f"{settings.max_context_tokens} tokens"
            )
        self.diffusion = diffusion
        self.settings = settings
        self.pages = pages
        self.waiting = WaitingSequences()
        self.running: list[TokenSequence] = []  # in order of admission
        self.preempted: list[TokenSequence] = []  # since the engine last emptied the list
        # Most tokens of a row after which logits are computed, as compiled.
        self.max_block = 1
        self._slots = slots or StateSlots(settings.max_sequences)
        self._turns = 0

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest sequence; behind them there may have to be room for a canvas."""
        beyond = isinstance(self.diffusion, NoiseDiffusion)
        return self.settings.max_context_tokens - beyond * self.canvas_tokens

    @property
    def canvas_tokens(self) -> int:
        """Length of a canvas; 1 if the target decodes token after token."""
        return 1 if self.diffusion is None else self.diffusion.canvas_tokens

    @property
    def prompt_tokens(self) -> int:
        """Tokens to compute before decoding, of running sequences and waiting ones with a slot."""
        free = self.settings.max_sequences - len(self.running)
        waiting = itertools.islice(self.waiting, free)
        prompts = (s for s in self.running if not s.decoding)
        return sum(len(s.tokens) - s.committed for s in (*prompts, *waiting))

    def add(self, sequence: TokenSequence) -> None:
        """Queue a new sequence."""
        sequence.diffusion = self.diffusion
        self.waiting.add(sequence)

    def remove(self, sequence: TokenSequence) -> None:
        """Forget a sequence, finished or not, and free its pages."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        else:
            self.waiting.discard(sequence)

    def preempt_all(self) -> None:
        """Take every page back; all running sequences wait to be computed again."""
        while self.running:
            self._preempt(self.running[-1])
        self._slots.forget_contents()

    def plan(
        self,
        max_rows: int | None = None,
        prompt_room: PromptRoom = lambda rows, tokens, context: None,
        *,
        ahead: bool = False,
    ) -> tuple[Row, ...]:
        """Choose the rows of the next step, none if nothing can run, and allocate their pages.

        Sequences that wait for a draft or a new parser are left out. No states are saved before
        a step that is planned `ahead`, which need not run.
        """
        self._admit()
        rows: list[Row] = []
        budget = self.settings.max_step_tokens
        free = [s for s in self.running if not (s.awaiting_draft or s.awaiting_parser)]
        ready = [s for s in free if self._room(s) > 0]
        prompts = sorted((s for s in ready if not s.decoding), key=_background)
        if self.diffusion is not None:
            # Canvases are not cut: sequences whose row does not fit have their turn later.
            spare = self.diffusion.grain if prompts else 0
            fitting = (budget - spare) // self.diffusion.most_row_tokens
            max_rows = fitting if max_rows is None else min(max_rows, fitting)
        decoding = sorted((s for s in ready if s.decoding), key=lambda s: s.last_turn)[:max_rows]
        for sequence in (*decoding, *prompts):
            self._turns += 1
            sequence.last_turn = self._turns
        having_a_turn = set(decoding)
        # The background last, so that no other sequence has to give way to it.
        chosen = sorted((s for s in self.running if s in having_a_turn), key=_background)
        earlier = len(self.preempted)
        for index, sequence in enumerate(chosen):
            if sequence in self.preempted[earlier:]:
                continue  # preempted for an older one
            # Leave one token for each sequence still to come, and one for the oldest prompt.
            room = budget - (len(chosen) - index) - bool(prompts)
            if self.diffusion is None:
                row = self._decode_row(sequence, room, rows)
            else:
                row = self._canvas_row(sequence, self.diffusion, budget, rows)
            if row is not None:
                rows.append(row)
                budget -= len(row.token_ids)
        used = self.settings.max_step_tokens - budget
        if rows and prompts:
            beside = prompt_room(len(rows), used, max(s.committed for s in prompts))
            least = 1 if self.diffusion is None else self.diffusion.grain
            budget = budget if beside is None else min(budget, max(beside, least))
        for sequence in prompts:
            if budget <= 0 or sequence in self.preempted[earlier:]:
                continue
            row = self._prefill_row(sequence, used, budget, rows)
            if row is not None:
                rows.append(row)
                used += len(row.token_ids)
                budget -= len(row.token_ids)
        if rows and not ahead:
            for row in rows:
                self._slots.save(row.sequence, self.pages.page_size)
            rows[0] = replace(rows[0], state_copies=self._slots.take_copies())
        return tuple(rows)

    def commit(self, row: Row, result: RowResult) -> SequenceProgress:
        """Advance a sequence by the result of its row."""
        sequence = row.sequence
        if sequence.canvas is not None:
            return self._commit_canvas(row, sequence.canvas, result)
        sequence.draft = None
        if not row.chooses:
            sequence.committed += row.known_count
            self._name_pages(sequence)
            return SequenceProgress(row, 0, (), row.known_count)
        if sequence.awaiting_parser:
            # Nothing was chosen under masks of the grammar; what comes before that is final.
            sequence.finish_reason = end_without_parser(sequence)
            committed = row.known_count - 1
            sequence.committed += committed
            self._name_pages(sequence)
            return SequenceProgress(row, 0, (), committed, gave_up=True)
        accepted = row.token_ids[row.known_count : row.known_count + result.accepted]
        first = row.start + row.known_count + result.accepted
        rejected = zip(row.drafted[result.accepted :], result.after_rejected, strict=False)
        sequence.recycled.extend(
            RecycledChoice(position, after, token)
            for position, (after, token) in enumerate(rejected, first + 1)
        )
        gained = self._until_finished(sequence, (*accepted, result.next_token))
        sequence.tokens.extend(gained)
        # All but the newest token is final; what follows a stop token is not needed.
        committed = row.known_count + len(gained) - 1
        sequence.committed += committed
        self._name_pages(sequence)
        accepted_count = min(result.accepted, len(gained))
        return SequenceProgress(row, accepted_count, gained, committed, sequence.awaiting_parser)

    def _commit_canvas(self, row: Row, canvas: Canvas, result: RowResult) -> SequenceProgress:
        """Fill a canvas; what it gained counts once nothing before its end is unknown."""
        sequence = row.sequence
        committed = len(row.token_ids) - row.canvas_count
        sequence.committed += committed
        self._name_pages(sequence)
        if not row.canvas_count:
            return SequenceProgress(row, 0, (), committed)
        assert result.canvas is not None
        canvas.fill(result.canvas)
        gained = self._until_finished(sequence, canvas.leading(len(sequence.tokens)))
        if not canvas.done and sequence.finish_reason is None:
            return SequenceProgress(row, 0, (), committed)
        sequence.tokens.extend(gained)
        sequence.canvas = None
        return SequenceProgress(row, 0, gained, committed)

    def _until_finished(self, sequence: TokenSequence, gained: tuple[int, ...]) -> tuple[int, ...]:
        """Cut `gained` where the sequence ends, and set its finish reason."""
        limit = self._room(sequence)
        for count, token in enumerate(gained, start=1):
            sequence.finish_reason = end_at(token, sequence)
            if sequence.finish_reason is None and count >= limit:
                sequence.finish_reason = FinishReason.LENGTH
            if sequence.finish_reason is None and sequence.awaiting_parser:
                sequence.finish_reason = end_without_parser(sequence)
                return gained[:count]
            if sequence.finish_reason is not None:
                return gained[:count]
        return gained

    def _room(self, sequence: TokenSequence) -> int:
        """Tokens that a sequence may still gain."""
        return min(sequence.remaining, self.most_tokens - len(sequence.tokens))

    def _admit(self) -> None:
        while self.waiting:
            sequence = self.waiting.first(self.running)
            if not self._make_room(sequence):
                return
            self.waiting.take(sequence)
            sequence.state_slot = self._slots.take()
            if not sequence.scores_prompt:
                root = root_name(sequence.request.cache_salt, sequence.request.adapter)
                cached, sequence.page_hashes = self.pages.take_prefix(
                    sequence.tokens, root, self._slots.has
                )
                sequence.pages.extend(cached)
                self._slots.restore(sequence)
            sequence.committed = len(sequence.pages) * self.pages.page_size
            if sequence.output_count == len(sequence.request.emitted):
                sequence.usage.cached_prompt_tokens = sequence.committed
            self.running.append(sequence)

    def _make_room(self, newcomer: TokenSequence) -> bool:
        """Return whether a waiting sequence fits, once the background has given way to it.

        A newcomer must not preempt others: its first chunk and everyone's next page must fit.
        """
        first_chunk = self._page_count(min(len(newcomer.tokens), self.settings.max_step_tokens))
        yielding = [s for s in self.running if _background(s) > _background(newcomer)]
        slots = len(self.running) - len(yielding)
        # None yields if all of them together would not make room. Pages that they share with others
        # count as free too, although they are not; so some may yield in vain.
        max_pages = self.pages.available + sum(len(s.pages) for s in yielding)
        if slots >= self.settings.max_sequences or (slots and first_chunk + slots > max_pages):
            return False
        while not self._fits(first_chunk):
            if not yielding:
                return False
            self._preempt(yielding.pop())
        return True

    def _fits(self, first_chunk: int) -> bool:
        """Return whether a sequence whose first chunk takes so many pages may run beside others."""
        running = len(self.running)
        return running < self.settings.max_sequences and (
            not running or first_chunk + running <= self.pages.available
        )

    def _decode_row(self, sequence: TokenSequence, room: int, rows: list[Row]) -> Row | None:
        draft = sequence.draft or Draft(())
        # The last token of a completion comes from the target, so no draft is needed for it.
        limit = max(0, min(room, self._room(sequence) - 1))
        guided = Guided(draft.token_ids[:limit])
        if sequence.grammar is not None:
            allowed = sequence.request.max_draft_tokens
            limit = min(limit, self.max_block - 1, limit if allowed is None else allowed)
            guided = sequence.grammar.guide(guided.token_ids, limit)
        tokens = guided.token_ids
        start = sequence.committed
        if not self._grow(sequence, start + 1 + len(tokens), rows):
            return None
        whole = len(tokens) >= len(draft.token_ids)
        return Row(
            sequence,
            start,
            (sequence.anchor, *tokens),
            len(tokens),
            draft.source,
            guided.cut > 0 or (draft.ended_early and whole),
            guided.forced,
            guided.cut,
        )

    def _canvas_row(
        self, sequence: TokenSequence, diffusion: Diffusion, budget: int, rows: list[Row]
    ) -> Row | None:
        """Return the canvas of a sequence, after the one before it if that is not committed yet.

        Where the latter has to say the first token of the next, it comes alone.
        """
        tokens, start = sequence.tokens, sequence.committed
        begin = diffusion.start(len(tokens))
        before, count = tuple(tokens[start:begin]), 0
        follows = isinstance(diffusion, MaskDiffusion) and diffusion.shifted
        if not (follows and begin == len(tokens)):
            if sequence.canvas is None:
                sequence.canvas = canvas_after(tokens, diffusion, sequence.request.sampling)
            before, count = before + sequence.canvas.token_ids, diffusion.canvas_tokens
        if len(before) > budget or not self._grow(sequence, start + len(before), rows):
            return None
        return Row(sequence, start, before, 0, canvas_count=count)

    def _prefill_row(
        self, sequence: TokenSequence, used: int, budget: int, rows: list[Row]
    ) -> Row | None:
        start = sequence.committed
        stop, grain = len(sequence.tokens), 1
        if self.diffusion is not None:
            stop, grain = self.diffusion.settled(stop), self.diffusion.grain
        count = prefill_chunk(stop - start, used, budget)
        count = max(count // grain, 1) * grain
        if count > budget:
            return None
        scored = sequence.scores_prompt
        if scored:
            count = min(count, self.max_block)
        if not self._grow(sequence, start + count, rows):
            return None
        tokens = tuple(sequence.tokens[start : start + count])
        return Row(sequence, start, tokens, 0, scored=scored)

    def _grow(self, sequence: TokenSequence, length: int, rows: Iterable[Row]) -> bool:
        """Give `sequence` pages for `length` tokens, preempting others if it must.

        The youngest of the background goes first, then the youngest of all, `sequence` included.
        """
        missing = self._page_count(length) - len(sequence.pages)
        while missing > self.pages.available:
            planned = {row.sequence for row in rows}
            youngest = [s for s in reversed(self.running) if s not in planned]
            victim = max(youngest, key=_background)  # the first of them
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.pages.extend(self.pages.allocate(missing))
        return True

    def _preempt(self, sequence: TokenSequence) -> None:
        self.preempted.append(sequence)
        self.running.remove(sequence)
        self._release(sequence)
        self.waiting.put_back(sequence)

    def _release(self, sequence: TokenSequence) -> None:
        self.pages.release(sequence.pages)
        self._slots.release(sequence.state_slot)
        sequence.pages = no_pages()
        sequence.page_hashes = []
        sequence.committed = 0
        sequence.names_pages = True
        sequence.draft = sequence.canvas = None
        sequence.awaiting_draft = False

    def _name_pages(self, sequence: TokenSequence) -> None:
        size = self.pages.page_size
        whole = sequence.committed // size if sequence.names_pages else 0
        while len(sequence.page_hashes) < whole:
            start = len(sequence.page_hashes) * size
            if sequence.page_hashes:
                previous = sequence.page_hashes[-1]
            else:
                previous = root_name(sequence.request.cache_salt, sequence.request.adapter)
            name = page_hash(previous, sequence.tokens[start : start + size])
            self.pages.name(sequence.pages[len(sequence.page_hashes)], name)
            sequence.page_hashes.append(name)

    def _page_count(self, length: int) -> int:
        return -(-length // self.pages.page_size)


def _background(sequence: TokenSequence) -> bool:
    return sequence.request.background
