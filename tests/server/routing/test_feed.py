import asyncio

import pytest

from blockdraft_protos.v1 import inference_pb2, verifier_pb2
from blockdraft_server.routing import feed as feed_module
from blockdraft_server.routing.feed import Feed, MessagePace


def _log_probs(token: int) -> inference_pb2.TokenLogProbs:
    return inference_pb2.TokenLogProbs(chosen=inference_pb2.TokenLogProb(log_prob=-token))


def message(*token_ids: int) -> verifier_pb2.SequenceTokens:
    return verifier_pb2.SequenceTokens(
        sequence_id=7,
        token_ids=token_ids,
        step_sizes=[len(token_ids)],
        log_probs=[_log_probs(token) for token in token_ids],
    )


async def test_a_reader_who_waits_gets_each_message() -> None:
    feed = Feed(MessagePace())
    for token in range(3):
        reading = asyncio.ensure_future(feed.take())
        await asyncio.sleep(0)
        feed.put(message(token))
        assert await reading == message(token)


async def test_a_reader_who_comes_late_gets_all_steps_in_one_message() -> None:
    feed = Feed(MessagePace())
    feed.put(message(1))
    feed.put(message(2, 3))
    last = message(4)
    last.finish_reason = inference_pb2.FINISH_REASON_LENGTH
    last.usage.output_tokens = 4
    feed.put(last)
    merged = await feed.take()
    assert list(merged.token_ids) == [1, 2, 3, 4]
    assert list(merged.step_sizes) == [1, 2, 1]
    assert [entry.chosen.log_prob for entry in merged.log_probs] == [-1, -2, -3, -4]
    assert merged.finish_reason == inference_pb2.FINISH_REASON_LENGTH
    assert merged.usage.output_tokens == 4


async def test_no_message_grows_beyond_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MAX_MERGED_TOKENS", 4)
    feed = Feed(MessagePace())
    for token in range(0, 10, 2):
        feed.put(message(token, token + 1))
    feed.fail(RuntimeError("the end"))
    taken = [list((await feed.take()).token_ids) for _ in range(3)]
    assert taken == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    with pytest.raises(RuntimeError, match="the end"):
        await feed.take()


async def test_the_first_error_comes_after_all_messages_and_stays() -> None:
    feed = Feed(MessagePace())
    feed.put(message(1))
    feed.fail(RuntimeError("first"))
    feed.fail(RuntimeError("second"))
    assert await feed.take() == message(1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="first"):
            await feed.take()
    waiting = Feed(MessagePace())
    reading = asyncio.ensure_future(waiting.take())
    await asyncio.sleep(0)
    waiting.fail(RuntimeError("late"))
    with pytest.raises(RuntimeError, match="late"):
        await reading


def crowd(seconds: float = 3600) -> MessagePace:
    """So many readers that a turn of each takes so long."""
    pace = MessagePace()
    pace.readers = round(feed_module.MESSAGES_PER_SECOND * seconds)
    return pace


async def test_only_readers_who_get_messages_count_for_the_pace() -> None:
    pace = MessagePace()
    feeds = [Feed(pace) for _ in range(3)]
    assert pace.seconds == 0
    for feed in feeds[:2]:
        feed.put(message(1))
        feed.put(message(2))
    assert pace.seconds == 2 / feed_module.MESSAGES_PER_SECOND
    for feed in (*feeds, *feeds):
        feed.close()
    assert pace.readers == 0


async def test_steps_before_a_readers_turn_are_one_message() -> None:
    feed = Feed(crowd())
    feed.put(message(1))
    # Nobody waits for a first message.
    assert await feed.take() == message(1)
    reading = asyncio.ensure_future(feed.take())
    for token in (2, 3):
        feed.put(message(token))
        await asyncio.sleep(0.01)
        assert not reading.done()
    # Nor for the last one.
    last = message(4)
    last.finish_reason = inference_pb2.FINISH_REASON_STOP
    feed.put(last)
    assert list((await reading).token_ids) == [2, 3, 4]


async def test_an_error_waits_for_no_turn() -> None:
    feed = Feed(crowd())
    feed.put(message(1))
    await feed.take()
    feed.put(message(2))
    reading = asyncio.ensure_future(feed.take())
    await asyncio.sleep(0)
    feed.fail(RuntimeError("the end"))
    assert await reading == message(2)
    with pytest.raises(RuntimeError, match="the end"):
        await feed.take()


async def test_a_turn_comes() -> None:
    feed = Feed(crowd(0.01))
    for token in range(3):
        feed.put(message(token))
        assert await feed.take() == message(token)


async def test_a_cancelled_reader_loses_nothing() -> None:
    feed = Feed(MessagePace())
    reading = asyncio.ensure_future(feed.take())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    feed.put(message(1))
    assert await feed.take() == message(1)


async def test_what_waits_is_no_part_of_the_message_for_all() -> None:
    feed = Feed(MessagePace())
    response = verifier_pb2.DecodeResponse(sequences=[message(1), message(2)])
    feed.put(response.sequences[0])
    # It would keep the tokens of all other sequences in memory.
    response.sequences[0].token_ids.append(9)
    assert await feed.take() == message(1)
