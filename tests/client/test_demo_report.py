"""The arithmetic of the demo, by hand."""

import json

import pytest

from blockdraft_client import Completion, DrafterInfo, FinishReason, ModelInfo, StepSeconds, Usage
from blockdraft_client.cli.demo_report import (
    DemoReport,
    demo_report,
    table_rows,
    verdict,
)


def model(*, trained: bool = False, attached: bool = True) -> ModelInfo:
    drafter = DrafterInfo("dflash", 8, "feed", trained) if attached else None
    return ModelInfo("target", "beef", 100, 64, drafter, "1.0")


def completion(usage: Usage, token_ids: tuple[int, ...] = (1, 2, 3, 4, 5)) -> Completion:
    return Completion("text", token_ids, (), FinishReason.STOP, usage, "id", "target")


def plain(decode_seconds: float) -> Completion:
    return completion(
        Usage(
            output_tokens=5,
            verification_steps=4,
            queue_seconds=0.125,
            prefill_seconds=0.375,
            decode_seconds=decode_seconds,
            step_seconds=StepSeconds(verify=decode_seconds * 0.75, host=decode_seconds * 0.25),
        )
    )


def drafted(decode_seconds: float, accepted: int) -> Completion:
    return completion(
        Usage(
            output_tokens=5,
            verification_steps=2,
            drafted_tokens=4,
            accepted_tokens=accepted,
            drafted_per_position=(2, 2),
            accepted_per_position=(accepted, 0),
            prefill_seconds=0.25,
            decode_seconds=decode_seconds,
            step_seconds=StepSeconds(0.5, 0.25, 0.125, 0.0625),
        )
    )


@pytest.fixture
def report() -> DemoReport:
    return demo_report(
        model(),
        warm_up=[plain(100.0), drafted(100.0, 0)],
        plain=[plain(4.0), plain(2.0), plain(1.0)],
        drafted=[drafted(0.5, 2), drafted(1.0, 1), drafted(4.0, 1)],
    )


def test_one_different_token_is_noticed() -> None:
    odd = completion(Usage(output_tokens=5), (1, 2, 3, 4, 6))
    runs = [plain(1.0), plain(1.0)]
    assert demo_report(model(), runs, runs, runs).identical
    for position in range(3):
        groups = [runs, runs, runs]
        groups[position] = [runs[0], odd]
        different = demo_report(model(), *groups)
        assert not different.identical
        assert verdict(different).startswith("WRONG")


def test_the_json_form_is_complete(report: DemoReport) -> None:
    assert json.loads(json.dumps(report.to_json())) == {
        "completion": "text",
        "identical": True,
        # Four tokens after the first one, in a median of 2 s and of 1 s.
        "plain": {"tokens_per_second": 2.0, "output_tokens": 5, "ttft_seconds": 0.5},
        "drafted": {"tokens_per_second": 4.0, "output_tokens": 5, "ttft_seconds": 0.25},
        "speedup": 2.0,
        # Six steps accepted 2 + 1 + 1; the first position was drafted six times.
        "acceptance_length": pytest.approx(5 / 3),
        "acceptance_per_position": pytest.approx([4 / 6, 0.0]),
        "step_seconds": {"verify": 0.25, "draft": 0.125, "transport": 0.0625, "host": 0.03125},
        "target": "target",
        "drafter": "dflash:feed",
        "trained": False,
    }


def test_the_table_reads_as_measured(report: DemoReport) -> None:
    assert list(table_rows(report)) == [
        ("tokens/s", "2.0", "4.0"),
        ("τ, tokens per step", "1.00", "1.67"),
        ("accepted per position", "-", "67% 0%"),
        ("TTFT", "500.0 ms", "250.0 ms"),
        ("step", "500.0 ms", "468.8 ms"),
        ("  verify", "375.0 ms", "250.0 ms"),
        ("  draft", "0.0 ms", "125.0 ms"),
        ("  transport", "0.0 ms", "62.5 ms"),
        ("  host", "125.0 ms", "31.2 ms"),
    ]


def test_the_verdict_says_whether_the_drafter_is_trained(report: DemoReport) -> None:
    assert "NOT trained for target" in verdict(report)
    assert "2.00x" in verdict(report)
    runs = [plain(1.0)]
    assert "was trained for target" in verdict(demo_report(model(trained=True), runs, runs, runs))


def test_a_one_token_answer_without_a_drafter_has_no_speed() -> None:
    runs = [completion(Usage(output_tokens=1), (1,))]
    report = demo_report(model(attached=False), runs, runs, runs)
    assert (report.plain.tokens_per_second, report.speedup) == (None, None)
    assert (report.drafter, report.trained) == (None, False)
    assert "There is no drafter for target: only prompt lookup drafted" in verdict(report)
    assert next(table_rows(report)) == ("tokens/s", "-", "-")
