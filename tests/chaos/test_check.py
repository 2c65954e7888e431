"""The check itself: what it must not let pass, and what it must not blame."""

import pytest
from tools.chaos.check import Fate, judge, recovery_seconds
from tools.chaos.faults import Happened
from tools.chaos.load import Heard
from tools.chaos.schedule import Fault, Kind
from tools.chaos.wanted import PATIENT_SECONDS, Wanted

from blockdraft_client import Completion, FinishReason, SamplingParams, Usage
from blockdraft_protos.v1 import inference_pb2

PATIENT = Wanted("duck", SamplingParams(), False, None, PATIENT_SECONDS)
HURRIED = Wanted("duck", SamplingParams(), False, None, 1.0)
TRUE = Completion(
    text="abc",
    token_ids=(97, 98, 99),
    log_probs=(),
    finish_reason=FinishReason.LENGTH,
    usage=Usage.from_proto(inference_pb2.Usage()),
    request_id="r",
    model="m",
)


def heard(tokens: str = "abc", finish: str | None = "length", **more: object) -> Heard:
    """Return an answer that came between the times 100 and 101."""
    return Heard(
        began=100.0,
        ended=101.0,
        token_ids=list(tokens.encode()),
        text=tokens,
        finish=finish,
        **more,  # type: ignore[arg-type]  # whatever a test changes
    )


def happened(kind: Kind, target: str, began: float = 100.5) -> Happened:
    return Happened(Fault(0, kind, target), began, began + 10)


def fate(one: Heard, *faults: Happened, wanted: Wanted = PATIENT) -> Fate:
    return judge(wanted, one, TRUE, faults).fate


@pytest.mark.parametrize("tokens", ["abd", "ab", "abcc", "aabc", "", "bc"])
def test_other_tokens_are_a_change(tokens: str) -> None:
    assert fate(heard(tokens)) is Fate.CHANGED


def test_a_change_is_not_excused_by_an_error_a_fault_or_a_deadline() -> None:
    for error in ("ConnectionFailedError", "DeadlineExceededError"):
        one = heard("ax", None, error=error)
        assert fate(one, happened(Kind.KILL, "server"), wanted=HURRIED) is Fate.CHANGED


def test_another_end_is_a_change() -> None:
    assert fate(heard(finish="stop")) is Fate.CHANGED
    assert fate(heard()) is Fate.RIGHT


def test_no_end_is_a_loss_unless_the_caller_left() -> None:
    assert fate(heard("ab", None)) is Fate.LOST
    assert fate(heard("ab", None, error="nothing came")) is Fate.LOST
    assert fate(heard("ab", None, left=True)) is Fate.LEFT


def test_a_deadline_ends_only_those_who_set_one_and_not_before_it() -> None:
    late = heard("ab", None, error="DeadlineExceededError")
    assert fate(late, wanted=HURRIED) is Fate.LATE
    assert fate(late, happened(Kind.KILL, "server")) is Fate.UNEXPLAINED
    late.ended = 100.5
    assert fate(late, wanted=HURRIED) is Fate.UNEXPLAINED


def test_a_lost_connection_needs_a_fault_in_front_of_the_server_at_that_time() -> None:
    lost = heard("ab", None, error="ConnectionFailedError")
    assert fate(lost, happened(Kind.KILL, "server")) is Fate.EXPLAINED
    assert fate(lost, happened(Kind.CUT, "client-server")) is Fate.EXPLAINED
    assert fate(lost, happened(Kind.KILL, "server", began=80)) is Fate.UNEXPLAINED
    assert fate(lost, happened(Kind.KILL, "server", began=102)) is Fate.UNEXPLAINED
    assert fate(lost, happened(Kind.STOP, "server")) is Fate.UNEXPLAINED
    assert fate(lost, happened(Kind.KILL, "verifier-1")) is Fate.UNEXPLAINED


def test_one_verifier_or_the_drafter_explain_nothing() -> None:
    away = heard("ab", None, error="UnavailableError", reason="VERIFIER_UNAVAILABLE")
    first, second = happened(Kind.KILL, "verifier-1"), happened(Kind.CUT, "server-verifier-2")
    assert fate(away, first, happened(Kind.KILL, "drafter")) is Fate.UNEXPLAINED
    assert fate(away, first, second) is Fate.EXPLAINED
    broken = heard("ab", None, error="InternalServerError", reason="INTERNAL")
    assert fate(broken, first, second, happened(Kind.KILL, "server")) is Fate.UNEXPLAINED


def test_recovery_is_the_longest_pause_of_streams_that_had_begun_and_went_on() -> None:
    faults = [happened(Kind.KILL, "verifier-1", began=100.5)]
    streams = [
        heard(times=[100.1, 100.7]),
        # What was on its way comes first, then the pause.
        heard(times=[100.2, 100.4, 100.51, 102.0, 102.1]),
        heard(times=[100.2, 100.6, 111.0, 119.0]),
        heard(times=[100.6, 100.7]),
        heard(times=[100.1]),
    ]
    assert recovery_seconds(faults, streams) == [pytest.approx([0.2, 1.49, 10.4])]
