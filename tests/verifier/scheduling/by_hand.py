"""A target that can be computed by hand, which checks every plan it runs."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from blockdraft_verifier.scheduling.row import Row, RowResult
from blockdraft_verifier.scheduling.scheduler import Scheduler
from blockdraft_verifier.scheduling.sequence import Draft, TokenSequence

VOCAB = 11


def next_token(tokens: list[int]) -> int:
    """Return the fake target's choice after `tokens`."""
    return (sum(tokens) + len(tokens)) % VOCAB


def draft(rng: random.Random, tokens: list[int], rate: float) -> Draft:
    """Return some tokens to follow `tokens`, each right at `rate`."""
    drafted = list(tokens)
    for _ in range(rng.randint(0, 5)):
        right = rng.random() < rate
        drafted.append((next_token(drafted) + (not right)) % VOCAB)
    return Draft(tuple(drafted[len(tokens) :]))


@dataclass
class Driver:
    """Runs a scheduler's plans on the fake target and checks every one of them."""

    scheduler: Scheduler
    # What each cache slot holds: the token there and all before it.
    cache: dict[int, tuple[int, ...]] = field(default_factory=dict)
    admitted: set[int] = field(default_factory=set)
    # For each sequence, the others of its tenant and class that came before it.
    earlier: dict[int, set[int]] = field(default_factory=dict)
    tenants: dict[tuple[bytes, bool], set[int]] = field(default_factory=dict)
    ended: list[TokenSequence] = field(default_factory=list)
    preemptions: int = 0
    preempted: int = 0  # in the last step

    def add(self, *sequences: TokenSequence) -> None:
        for sequence in sequences:
            queue = sequence.request.cache_salt, sequence.request.background
            mine = self.tenants.setdefault(queue, set())
            self.earlier[sequence.sequence_id] = set(mine)
            mine.add(sequence.sequence_id)
            self.scheduler.add(sequence)

    def finish(self) -> None:
        """Run until nothing is left to do."""
        while self.step():
            pass

    def step(
        self,
        max_rows: int | None = None,
        prompt_room: Callable[[int, int, int], int | None] = lambda rows, tokens, context: None,
    ) -> tuple[Row, ...]:
        rows = self.scheduler.plan(max_rows, prompt_room)
        self.check(rows, max_rows)
        self.preempted = len(self.scheduler.preempted)
        self.preemptions += self.preempted
        self.scheduler.preempted.clear()
        for row in rows:
            self.run(row)
        return rows

    def check(self, rows: tuple[Row, ...], max_rows: int | None) -> None:
        limits, running = self.scheduler.settings, self.scheduler.running
        assert sum(len(row.token_ids) for row in rows) <= limits.max_step_tokens
        assert len(rows) <= len(running) <= limits.max_sequences
        assert len({row.sequence for row in rows}) == len(rows)
        for row in rows:
            sequence, end = row.sequence, row.start + len(row.token_ids)
            assert sequence in running
            assert not sequence.awaiting_draft
            assert row.start == sequence.committed
            assert row.known_count >= 1
            known = sequence.tokens[row.start : row.start + row.known_count]
            assert list(row.token_ids[: row.known_count]) == known
            assert end <= len(sequence.pages) * self.scheduler.pages.page_size
            assert end <= limits.max_context_tokens
            written = set(sequence.pages[row.start // self.scheduler.pages.page_size :])
            for other in running:
                assert other is sequence or written.isdisjoint(other.pages)
        # Of each tenant: first come, first served. Some may have been admitted and preempted in
        # this very plan.
        self.admitted |= {s.sequence_id for s in (*running, *self.scheduler.preempted)}
        for number in self.admitted:
            assert self.earlier[number] <= self.admitted
        # The background waits last, and of each class preempted sequences come back first.
        waits = [
            (s.request.background, s.sequence_id not in self.admitted)
            for s in self.scheduler.waiting
        ]
        assert waits == sorted(waits)
        if waits and not waits[0][0] and not self.scheduler.preempted:
            self.check_background_gave_way()
        # Nobody is passed over: all that decode, and the oldest prompt.
        chosen = {row.sequence for row in rows}
        ready = [s for s in running if not s.awaiting_draft]
        decoding = {s for s in ready if s.decoding}
        most = len(decoding) if max_rows is None else min(max_rows, len(decoding))
        if not self.scheduler.preempted:
            assert len(decoding & chosen) == most
            prompts = [s for s in ready if not s.decoding]
            prompts.sort(key=lambda s: s.request.background)
            assert chosen >= set(prompts[:1])

    def check_background_gave_way(self) -> None:
        """See that waiting sequences would not fit even if all the background gave way."""
        limits, pages = self.scheduler.settings, self.scheduler.pages
        running = self.scheduler.running
        others = [s for s in running if not s.request.background]
        first = self.scheduler.waiting.first(running)
        needed = -(-min(len(first.tokens), limits.max_step_tokens) // pages.page_size)
        most = pages.available + sum(len(s.pages) for s in running if s.request.background)
        assert len(others) == limits.max_sequences or needed + len(others) > most

    def run(self, row: Row) -> None:
        sequence, size = row.sequence, self.scheduler.pages.page_size
        tokens = [*sequence.tokens[: row.start], *row.token_ids]
        for position in range(len(tokens)):
            slot = sequence.pages[position // size] * size + position % size
            if position >= row.start:
                self.cache[slot] = tuple(tokens[: position + 1])
            else:
                assert self.cache[slot] == tuple(tokens[: position + 1]), "not what was committed"
        accepted, known_end = 0, row.start + row.known_count
        while accepted < row.draft_count and tokens[known_end + accepted] == next_token(
            tokens[: known_end + accepted]
        ):
            accepted += 1
        before = len(sequence.tokens)
        result = RowResult(accepted, next_token(tokens[: known_end + accepted]))
        progress = self.scheduler.commit(row, result)
        assert sequence.draft is None
        assert tuple(sequence.tokens[before:]) == progress.new_tokens
        assert sequence.committed == row.start + progress.committed_count
        assert bool(progress.new_tokens) == (known_end == before)
        if progress.new_tokens:
            assert sequence.committed == len(sequence.tokens) - 1
        if sequence.finish_reason is not None:
            self.scheduler.remove(sequence)
            self.ended.append(sequence)
