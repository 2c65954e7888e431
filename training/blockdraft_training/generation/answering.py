"""What the batched generator is asked, and what comes back; without JAX."""

from dataclasses import dataclass

# Prompts are padded to powers of two from here on: below, all cost the same.
SHORTEST_PADDED_PROMPT = 32


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Shapes of the compiled computations.

    Attributes:
        rows: Answers in the making at once.
        max_prompt_tokens: Longest prompt.
        max_tokens: Longest answer.
        steps: Tokens per row and dispatch. More cost less time between dispatches and leave
            finished rows idle for longer.
    """

    rows: int
    max_prompt_tokens: int
    max_tokens: int
    steps: int = 8

    def __post_init__(self) -> None:
        """Refuse empty shapes."""
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def padded_length(self, tokens: int) -> int:
        """Return to how many tokens a prompt is padded."""
        return max(SHORTEST_PADDED_PROMPT, 1 << (tokens - 1).bit_length())

    @property
    def capacity(self) -> int:
        """Positions each row needs."""
        longest = self.max_prompt_tokens
        return max(self.padded_length(longest), longest + self.max_tokens)


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to be answered.

    Attributes:
        id: The caller's name for it.
        prompt: Token ids.
        temperature: 0 for greedy.
        seed: Of the noise; with temperature and prompt it determines the answer.
        max_tokens: Longest answer; None for the batch's.
    """

    id: str
    prompt: tuple[int, ...]
    temperature: float
    seed: int
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished request.

    Attributes:
        request: What was asked.
        token_ids: The answer, the end token included.
        cut: Whether it ends for length rather than with an end token.
    """

    request: Request
    token_ids: tuple[int, ...]
    cut: bool
