"""Conversations: what user and target said in turn."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from blockdraft_models.tokenizer.tokenizer import Tokenizer
from blockdraft_training.corpus.prompts import Prompt
from blockdraft_training.corpus.rows import CorpusRow

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said so far.

    Attributes:
        prompt: Where the user's messages are from; those that lack the target makes up.
        said: Messages of user and target, one after another.
    """

    prompt: Prompt
    said: tuple[str, ...]

    @property
    def turn(self) -> int:
        """Number of the user's message that is the last, or answered last."""
        return (len(self.said) + 1) // 2

    @property
    def row_id(self) -> str:
        """Id of the row with the answer to the user's last message."""
        return turn_id(self.prompt.id, self.turn)

    @property
    def messages(self) -> list[dict[str, str]]:
        """What the chat template is given."""
        roles = ("user", "assistant")
        return [{"role": roles[index % 2], "content": text} for index, text in enumerate(self.said)]

    def then(self, text: str) -> "Conversation":
        """Return the conversation after one more message."""
        return replace(self, said=(*self.said, text))


def turn_id(prompt_id: str, turn: int) -> str:
    """Return what a turn of a conversation is called."""
    return prompt_id if turn == 1 else f"{prompt_id}/turn-{turn}"


def begun(prompts: Iterable[Prompt]) -> list[Conversation]:
    """Return the conversations in which the user has asked and nobody answered."""
    return [Conversation(prompt, (prompt.text,)) for prompt in prompts]


def answered(
    conversations: Iterable[Conversation], rows: dict[str, CorpusRow], tokenizer: Tokenizer
) -> list[Conversation]:
    """Return those with an answer that ended by itself and can be read, that answer included.

    Args:
        conversations: The user's message is the last in each.
        rows: All answers, by id.
        tokenizer: The target's.
    """
    heard = []
    for conversation in conversations:
        row = rows.get(conversation.row_id)
        if row is None or row.response[-1] not in tokenizer.eos_token_ids:
            continue
        text = tokenizer.decode(row.response[:-1])
        if REPLACEMENT not in text:
            heard.append(conversation.then(text))
    return heard
