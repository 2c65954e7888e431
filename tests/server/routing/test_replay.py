from blockdraft_protos.v1 import inference_pb2 as pb
from blockdraft_protos.v1 import verifier_pb2
from blockdraft_server.routing.replay import CallMeter, Replay, total_usage
from blockdraft_server.routing.verifier_stream import TRIED_TOKENS, Death

COMPUTATION = "00112233445566ff"


def new_replay(max_replays: int = 2) -> Replay:
    """Return a request whose first call began at the time 10."""
    request = verifier_pb2.SequenceRequest(
        prompt_token_ids=[1, 2, 3],
        sampling=pb.SamplingOptions(max_output_tokens=6, stop_token_ids=[9]),
    )
    replay = Replay(request, max_replays)
    assert list(replay.begin(10.0, COMPUTATION).emitted_token_ids) == []
    return replay


def message(*token_ids: int) -> verifier_pb2.SequenceTokens:
    return verifier_pb2.SequenceTokens(token_ids=token_ids, step_sizes=[len(token_ids)])


def test_has_a_budget_that_tokens_do_not_refill() -> None:
    replay = new_replay(max_replays=1)
    for token in range(4):
        replay.begin(0.0, COMPUTATION)
        replay.received(message(token), 0.0)
        assert 0.05 <= (replay.broken() or 0.0) <= 0.1
    replay.begin(0.0, COMPUTATION)
    replay.received(message(4), 0.0)
    assert replay.broken() is None
    assert replay.replays == 4


def test_only_deaths_without_gain_between_them_make_a_suspect() -> None:
    replay = new_replay()
    replay.saw(Death("a", alone=True))
    # The same process cannot die twice.
    replay.saw(Death("a", alone=True))
    assert not replay.suspected
    replay.received(message(*range(TRIED_TOKENS - 1)), 0.0)
    replay.saw(Death("b", alone=False))
    assert replay.suspected
    assert not replay.convicted
    replay.saw(Death("c", alone=True))
    assert replay.convicted
    # It was the connection that broke, for this one and another.
    replay.forget_deaths({"a", "c"}.__contains__)
    assert not replay.suspected
    replay.saw(Death("d", alone=True))
    assert replay.convicted
    replay.received(message(*range(TRIED_TOKENS)), 0.0)
    assert not replay.suspected


def test_knows_from_the_tokens_alone_that_the_answer_is_complete() -> None:
    replay = new_replay()
    assert replay.finished is None
    replay.received(message(4, 9), 1.0)
    assert replay.finished == pb.FINISH_REASON_STOP
    replay = new_replay()
    replay.received(message(1, 2, 3, 4, 5, 6), 1.0)
    assert replay.finished == pb.FINISH_REASON_LENGTH


def test_usage_adds_what_was_seen_to_what_was_reported() -> None:
    replay = new_replay()
    replay.received(message(4), 12.0)
    drafted = message(5, 6, 7)
    drafted.sources.extend([pb.TOKEN_SOURCE_PROMPT_LOOKUP, pb.TOKEN_SOURCE_GRAMMAR])
    drafted.sources.append(pb.TOKEN_SOURCE_TARGET)
    replay.received(drafted, 13.5)
    replay.broken()
    replay.begin(20.0, COMPUTATION)
    last = message(8)
    reported = pb.Usage(
        output_tokens=1,
        drafted_tokens=3,
        prompt_lookup_drafted_tokens=2,
        forced_tokens=1,
        verification_steps=1,
        drafted_per_position=[1, 1, 1],
        accepted_per_position=[0, 0, 0],
        cached_prompt_tokens=3,
    )
    last.usage.CopyFrom(reported)
    last.usage.prefill_time.FromMilliseconds(250)
    last.usage.step_times.verify_time.FromMilliseconds(100)
    replay.received(last, 21.0)
    usage = replay.usage()
    assert (usage.prompt_tokens, usage.output_tokens) == (3, 5)
    assert (usage.drafted_tokens, usage.accepted_tokens) == (5, 2)
    assert (usage.prompt_lookup_drafted_tokens, usage.prompt_lookup_accepted_tokens) == (3, 1)
    assert usage.forced_tokens == 2
    assert usage.verification_steps == 2
    assert list(usage.drafted_per_position) == [2, 2, 1]
    assert list(usage.accepted_per_position) == [1, 1, 0]
    assert usage.cached_prompt_tokens == 0
    assert usage.prefill_time.ToMilliseconds() == 2250
    assert usage.decode_time.ToMilliseconds() == 1500
    assert usage.step_times.verify_time.ToMilliseconds() == 100


def test_steps_that_came_in_one_message_count_as_those_they_are() -> None:
    each, at_once = new_replay(), new_replay()
    merged = message()
    merged.ClearField("step_sizes")
    for step in (message(4), message(5, 6, 7), message(8)):
        each.received(step, 1.0)
        merged.MergeFrom(step)
    at_once.received(merged, 1.0)
    assert at_once.request.emitted_token_ids == each.request.emitted_token_ids == [4, 5, 6, 7, 8]
    assert at_once.usage() == each.usage()
    assert each.usage().verification_steps == 2
    assert list(each.usage().accepted_per_position) == [1, 1]


def test_canvases_are_no_accepted_drafts() -> None:
    replay = new_replay()
    for tokens in ((4, 5, 6), (7, 8, 9)):
        canvas = message(*tokens)
        canvas.sources.extend([pb.TOKEN_SOURCE_TARGET] * 3)
        replay.received(canvas, 1.0)
    replay.broken()
    usage = replay.usage()
    assert usage.output_tokens == 6
    assert (usage.drafted_tokens, usage.verification_steps) == (0, 0)


def test_a_call_without_messages_consumed_nothing_but_time() -> None:
    usage = CallMeter(5.0).usage()
    assert usage.output_tokens == 0
    assert usage.verification_steps == 0
    assert total_usage(3, [usage]).prompt_tokens == 3
