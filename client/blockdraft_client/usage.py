"""The usage of a request: tokens, steps and time, and figures derived from them."""

import itertools
from dataclasses import dataclass, field

from google.protobuf.duration_pb2 import Duration

from blockdraft_protos.v1 import inference_pb2


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """The time of decoding steps by part, in seconds.

    Attributes:
        verify: In the target's forward pass.
        draft: In the drafter's forward pass.
        transport: Waiting for the drafter beyond its own computation.
        host: Everything else: scheduling, copying, sending.
    """

    verify: float = 0.0
    draft: float = 0.0
    transport: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        """Return the sum of the parts."""
        return self.verify + self.draft + self.transport + self.host


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, steps and time of a request.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        output_tokens: Tokens generated, the stopping one included.
        drafted_tokens: Tokens drafted, by the drafter, by prompt lookup and by the constraint.
        accepted_tokens: Drafted tokens that were correct.
        verification_steps: Forward passes of the target after the prompt.
        cached_prompt_tokens: Prompt tokens reused from an earlier request.
        drafted_per_position: How often each draft position was filled, first one first.
        accepted_per_position: How often each draft position was accepted, first one first.
        queue_seconds: From arrival to the first computation.
        prefill_seconds: From the first computation to the first token.
        decode_seconds: From the first token to the last.
        step_seconds: Where the decoding steps' time went, summed over the steps.
        prompt_lookup_drafted_tokens: How many of `drafted_tokens` were found by prompt lookup.
        prompt_lookup_accepted_tokens: How many of `accepted_tokens` were found by prompt lookup.
        forced_tokens: How many of `accepted_tokens` were the only ones that the constraint left.
        denoising_steps: Steps of a target that denoises; it has neither verifications nor drafts.
        proto: The message this was read from.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    verification_steps: int = 0
    cached_prompt_tokens: int = 0
    drafted_per_position: tuple[int, ...] = ()
    accepted_per_position: tuple[int, ...] = ()
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    step_seconds: StepSeconds = StepSeconds()
    prompt_lookup_drafted_tokens: int = 0
    prompt_lookup_accepted_tokens: int = 0
    forced_tokens: int = 0
    denoising_steps: int = 0
    proto: inference_pb2.Usage | None = field(default=None, repr=False, compare=False)

    @classmethod
    def from_proto(cls, proto: inference_pb2.Usage) -> "Usage":
        """Read the message."""
        return cls(
            prompt_tokens=proto.prompt_tokens,
            output_tokens=proto.output_tokens,
            drafted_tokens=proto.drafted_tokens,
            accepted_tokens=proto.accepted_tokens,
            verification_steps=proto.verification_steps,
            cached_prompt_tokens=proto.cached_prompt_tokens,
            drafted_per_position=tuple(proto.drafted_per_position),
            accepted_per_position=tuple(proto.accepted_per_position),
            queue_seconds=_seconds(proto.queue_time),
            prefill_seconds=_seconds(proto.prefill_time),
            decode_seconds=_seconds(proto.decode_time),
            step_seconds=StepSeconds(
                verify=_seconds(proto.step_times.verify_time),
                draft=_seconds(proto.step_times.draft_time),
                transport=_seconds(proto.step_times.transport_time),
                host=_seconds(proto.step_times.host_time),
            ),
            prompt_lookup_drafted_tokens=proto.prompt_lookup_drafted_tokens,
            prompt_lookup_accepted_tokens=proto.prompt_lookup_accepted_tokens,
            forced_tokens=proto.forced_tokens,
            denoising_steps=proto.denoising_steps,
            proto=proto,
        )

    @property
    def acceptance_length(self) -> float | None:
        """Return τ, the tokens gained per verification step; None without a step.

        Each step gains its accepted tokens and one of the target's own, so plain decoding is 1.
        """
        if not self.verification_steps:
            return None
        return 1 + self.accepted_tokens / self.verification_steps

    @property
    def acceptance_rate(self) -> float | None:
        """Return the share of drafted tokens that were correct; None when none was drafted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None

    @property
    def acceptance_per_position(self) -> tuple[float, ...]:
        """Return, for each draft position that was filled, the share that was accepted."""
        # A position is never drafted more often than the one before it, so only positions at the
        # end are left out, and the index still is the position.
        return tuple(
            accepted / drafted
            for drafted, accepted in itertools.zip_longest(
                self.drafted_per_position, self.accepted_per_position, fillvalue=0
            )
            if drafted
        )

    @property
    def time_to_first_token_seconds(self) -> float:
        """Return the time from arrival to the first token, as the server saw it."""
        return self.queue_seconds + self.prefill_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Return the decoding speed; None when there was no decoding.

        The first token comes from the prompt's computation and starts the clock.
        """
        if not self.decode_seconds or self.output_tokens < 2:
            return None
        return (self.output_tokens - 1) / self.decode_seconds


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
