"""The tokens that a step gained, and the listeners that are told of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from blockdraft_protos.v1.inference_pb2 import TokenLogProbs
from blockdraft_verifier.device.step_runner import StepResult
from blockdraft_verifier.drafting.sync import DraftTimes
from blockdraft_verifier.scheduling.row import SequenceProgress
from blockdraft_verifier.scheduling.sequence import (
    DraftSource,
    FinishReason,
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
        """Add the step to the usage of each sequence."""
        for change in self.progress:
            row, usage = change.row, change.row.sequence.usage
            if usage.first_step_time is None:
                usage.first_step_time = self.ended_at - self.result.seconds
            follows = usage.first_token_time is not None
            if row.canvas_count:
                usage.denoising_steps += 1
            elif change.new_tokens and follows:
                usage.count_verification(row.sources, change.accepted)
            # The time before the first token is counted as a whole.
            if follows and (change.new_tokens or row.canvas_count):
                usage.verify_seconds += self.result.seconds
                usage.draft_seconds += self.times.draft
                usage.transport_seconds += self.times.transport
            if change.new_tokens:
                if not follows:
                    usage.first_token_time = self.ended_at
                usage.last_token_time = self.ended_at


@dataclass(frozen=True, slots=True)
class TokensGained:
    """The tokens that one step gained for one sequence."""

    token_ids: tuple[int, ...]
    log_probs: tuple[TokenLogProbs, ...] = ()  # one entry per token, if asked for
    drafted: int = 0  # drafted tokens the step verified; 0 for the token that follows the prompt
    sources: tuple[DraftSource, ...] = ()  # of the accepted ones, which `token_ids` begin with
    finish_reason: FinishReason | None = None  # set on the last event, as `usage` is
    usage: Usage | None = None
    awaiting_parser: bool = False  # whether it goes on only once `Engine.resume` is called
    failure: str | None = None  # set instead of tokens when the engine failed
    # Those of the prompt's tokens after the first; with the first token gained, if asked for.
    prompt_log_probs: tuple[TokenLogProbs, ...] = ()

    @property
    def accepted(self) -> int:
        """How many drafted tokens are among `token_ids`."""
        return len(self.sources)


Listener = Callable[[TokensGained], None]
StepEnd = Callable[[], None]


@dataclass(slots=True)
class _Subscription:
    """The listener of a sequence, and log probabilities of its prompt as far as it was computed."""

    listener: Listener
    on_step_end: StepEnd
    prompt_log_probs: list[TokenLogProbs] = field(default_factory=list)


class Listeners:
    """The listeners of all sequences."""

    def __init__(self) -> None:
        """Start with none."""
        self._of: dict[TokenSequence, _Subscription] = {}

    def add(self, sequence: TokenSequence, listener: Listener, on_step_end: StepEnd) -> None:
        """Tell `listener` after each step that gained tokens for a sequence.

        `on_step_end` is called after the listeners of such a step, once for all sequences that were
        added with the same one.
        """
        self._of[sequence] = _Subscription(listener, on_step_end)

    def forget(self, sequence: TokenSequence) -> None:
        """Drop the listeners of a sequence."""
        self._of.pop(sequence, None)

    def tell(self, progress: Sequence[SequenceProgress], result: StepResult) -> None:
        """Call the listeners of each row with news, unless they have been dropped."""
        of_prompts = result.prompt_log_probs or [[]] * len(progress)
        # A dictionary for its order.
        step_ends: dict[StepEnd, None] = {}
        for change, log_probs, of_prompt in zip(
            progress, result.log_probs, of_prompts, strict=True
        ):
            sequence = change.row.sequence
            subscription = self._of.get(sequence)
            if subscription is None:
                continue
            prompt_log_probs = subscription.prompt_log_probs
            # A sequence that was preempted computes some of them again.
            prompt_log_probs.extend(of_prompt[len(prompt_log_probs) - change.row.start :])
            if not change.new_tokens and not change.gave_up:
                continue
            event = TokensGained(
                change.new_tokens,
                tuple(log_probs[: len(change.new_tokens)]),
                change.row.draft_count,
                tuple(change.row.sources[: change.accepted]),
                sequence.finish_reason,
                sequence.usage if sequence.finish_reason is not None else None,
                awaiting_parser=change.gave_up and sequence.finish_reason is None,
                prompt_log_probs=tuple(prompt_log_probs),
            )
            prompt_log_probs.clear()
            subscription.listener(event)
            step_ends[subscription.on_step_end] = None
        for on_step_end in step_ends:
            on_step_end()

    def end(self, sequence: TokenSequence) -> None:
        """Tell the listener of a sequence that it ended between two steps."""
        ended = TokensGained((), finish_reason=sequence.finish_reason, usage=sequence.usage)
        self._of[sequence].listener(ended)
        self._of[sequence].on_step_end()

    def fail(self, failure: str) -> None:
        """Tell all listeners that are left that nothing more will come."""
        left = tuple(self._of.values())
        for subscription in left:
            subscription.listener(TokensGained((), failure=failure))
        for on_step_end in dict.fromkeys(subscription.on_step_end for subscription in left):
            on_step_end()
