"""The tokens that a step gained, and the listeners that are told of them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from blockdraft_verifier.device.step_runner import StepResult
from blockdraft_verifier.drafting.sync import DraftTimes
from blockdraft_verifier.scheduling.scheduler import SequenceProgress
from blockdraft_verifier.scheduling.sequence import (
    DraftSource,
    FinishReason,
    RankedLogProbs,
    TokenSequence,
    Usage,
)


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step whose rows are committed, but whose listeners have not been called yet.

    The target had computed it at `ended_at`, of the engine's clock.
    """

    progress: list[SequenceProgress]
    result: StepResult
    times: DraftTimes
    ended_at: float

    @property
    def ended(self) -> list[TokenSequence]:
        """Sequences that the step ended."""
        sequences = (change.row.sequence for change in self.progress)
        return [sequence for sequence in sequences if sequence.finish_reason is not None]

    def account(self) -> None:
        """Add the step to the usage of each sequence, and what it says of prompts."""
        for change, log_probs in zip(self.progress, self.result.prompt_log_probs, strict=False):
            of_prompt = change.row.sequence.prompt_log_probs
            # A sequence that was preempted computes some of them again.
            of_prompt.extend(log_probs[len(of_prompt) - change.row.start :])
        for change in self.progress:
            row, usage = change.row, change.row.sequence.usage
            if usage.first_step_time is None:
                usage.first_step_time = self.ended_at - self.result.seconds
            if not change.new_tokens:
                continue
            if usage.first_token_time is None:
                usage.first_token_time = self.ended_at
            else:
                usage.count_verification(row.sources, change.accepted)
                usage.verify_seconds += self.result.seconds
                usage.draft_seconds += self.times.draft
                usage.transport_seconds += self.times.transport
            usage.last_token_time = self.ended_at


@dataclass(frozen=True, slots=True)
class TokensGained:
    """The tokens that one step gained for one sequence."""

    token_ids: tuple[int, ...]
    log_probs: tuple[RankedLogProbs, ...] = ()  # one entry per token, if asked for
    drafted: int = 0  # drafted tokens the step verified; 0 for the token that follows the prompt
    sources: tuple[DraftSource, ...] = ()  # of the accepted ones, which `token_ids` begin with
    finish_reason: FinishReason | None = None  # set on the last event, as `usage` is
    usage: Usage | None = None
    awaiting_parser: bool = False  # whether it goes on only once `Engine.resume` is called
    failure: str | None = None  # set instead of tokens when the engine failed
    # Those of the prompt's tokens after the first; with the first token gained, if asked for.
    prompt_log_probs: tuple[RankedLogProbs, ...] = ()

    @property
    def accepted(self) -> int:
        """How many drafted tokens are among `token_ids`."""
        return len(self.sources)


Listener = Callable[[TokensGained], None]
StepEnd = Callable[[], None]


class Listeners:
    """The listeners of all sequences."""

    def __init__(self) -> None:
        """Start with none."""
        self._of: dict[TokenSequence, tuple[Listener, StepEnd]] = {}

    def add(self, sequence: TokenSequence, listener: Listener, on_step_end: StepEnd) -> None:
        """Tell `listener` after each step that gained tokens for a sequence.

        `on_step_end` is called after the listeners of such a step, once for all sequences that were
        added with the same one.
        """
        self._of[sequence] = listener, on_step_end

    def forget(self, sequence: TokenSequence) -> None:
        """Drop the listeners of a sequence."""
        self._of.pop(sequence, None)

    def tell(
        self, progress: Iterable[SequenceProgress], log_probs: Iterable[list[RankedLogProbs]]
    ) -> None:
        """Call the listeners of each row with news, unless they have been dropped."""
        # A dictionary for its order.
        step_ends: dict[StepEnd, None] = {}
        for change, row_log_probs in zip(progress, log_probs, strict=True):
            sequence = change.row.sequence
            news = change.new_tokens or change.gave_up
            if not news or sequence not in self._of:
                continue
            event = TokensGained(
                change.new_tokens,
                tuple(row_log_probs[: len(change.new_tokens)]),
                change.row.draft_count,
                tuple(change.row.sources[: change.accepted]),
                sequence.finish_reason,
                sequence.usage if sequence.finish_reason is not None else None,
                awaiting_parser=change.gave_up and sequence.finish_reason is None,
                prompt_log_probs=tuple(sequence.prompt_log_probs),
            )
            sequence.prompt_log_probs.clear()
            listener, on_step_end = self._of[sequence]
            listener(event)
            step_ends[on_step_end] = None
        for on_step_end in step_ends:
            on_step_end()

    def end(self, sequence: TokenSequence) -> None:
        """Tell the listener of a sequence that it ended between two steps."""
        listener, on_step_end = self._of[sequence]
        listener(TokensGained((), finish_reason=sequence.finish_reason, usage=sequence.usage))
        on_step_end()

    def fail(self, failure: str) -> None:
        """Tell all listeners that are left that nothing more will come."""
        left = tuple(self._of.values())
        for listener, _ in left:
            listener(TokensGained((), failure=failure))
        for on_step_end in dict.fromkeys(on_step_end for _, on_step_end in left):
            on_step_end()
