"""Rules and alerts, by promtool: each alert fires when it should, and none does in health.

Every scenario is the healthy service with some series replaced. The rules are tested without their
annotations, which promtool would want to be repeated here.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.tools import DEPLOY, ROOT, Manifest, names_in, registered, run

pytestmark = pytest.mark.deploy
SOURCE = DEPLOY / "prometheus" / "rules.yaml"
GROUPS: list[dict[str, Any]] = yaml.safe_load(SOURCE.read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = sorted({rule["alert"] for rule in RULES if "alert" in rule})
DAY, HOUR = 24 * 60, 60
LABELS = 'namespace="blockdraft"'

Series = dict[str, str]


def rising(by: float) -> str:
    """Return a counter that rises by so much every minute."""
    return f"0+{by}x{4 * DAY}"


def steady(value: float) -> str:
    return f"{value}+0x{4 * DAY}"


# One request in a second, 4 sequences in 10 steps a second, half a minute of steps in a minute.
HEALTHY: Series = {
    'server_requests_total{outcome="stop"}': rising(60),
    'server_requests_total{outcome="cancelled"}': rising(60),
    'server_requests_total{outcome="unavailable"}': rising(0),
    'server_time_to_first_token_seconds_bucket{le="2.5"}': rising(59),
    "server_time_to_first_token_seconds_count{}": rising(60),
    "server_requests_running{}": steady(4),
    "server_replays_total{}": rising(0),
    "server_event_loop_longest_hold_seconds{}": steady(0.01),
    "server_tls_certificate_expiry_timestamp_seconds{}": steady(60 * 86400),
    "verifier_steps_total{}": rising(600),
    "verifier_verifications_total{}": rising(2400),
    'verifier_drafts_total{source="drafter"}': rising(1200),
    'verifier_accepted_tokens_total{source="drafter"}': rising(2400),
    'verifier_accepted_tokens_per_position_total{source="drafter",position="1"}': rising(900),
    'verifier_step_seconds_sum{part="verify"}': rising(24),
    'verifier_step_seconds_sum{part="draft"}': rising(6),
    'verifier_step_seconds_sum{part="transport"}': rising(1),
    'verifier_step_seconds_sum{part="host"}': rising(2),
    "verifier_drafter_attached{}": steady(1),
    "verifier_late_drafts_total{}": rising(0),
    'verifier_sync_repairs_total{cause="stream_broken"}': rising(0),
    "verifier_recompilations_total{}": rising(0),
    'verifier_numerics_classes{dtype="bfloat16"}': steady(1),
    'verifier_numerics_classes{dtype="float32"}': steady(0),
    "drafter_recompilations_total{}": rising(0),
    "trainer_steps_total{}": rising(0),
    'drafter_training_samples_total{outcome="written"}': rising(0),
    "verifier_running_sequences{}": steady(4),
    "verifier_waiting_sequences{}": steady(0),
    "verifier_preemptions_total{}": rising(0),
}
RECORDED = {
    "blockdraft:acceptance_length:rate5m": 2.0,
    "blockdraft:acceptance_length_by_source:rate5m": 3.0,
    "blockdraft:acceptance_by_position:rate5m": 0.75,
    "blockdraft:step_seconds:rate5m": 33 / 60,
    "blockdraft:target_seconds:rate5m": 26 / 60,
    "blockdraft:estimated_speedup:rate5m": 2 * 26 / 33,
    "blockdraft:saved_step_seconds:rate5m": (2 * 26 - 33) / 60,
    "blockdraft:request_errors:ratio_rate1h": 0.0,
    "blockdraft:slow_first_tokens:ratio_rate1h": 1 / 60,
}

PAGE, TICKET = {"severity": "page"}, {"severity": "ticket"}
BURNS = [{**PAGE, "window": "1h"}, {**PAGE, "window": "6h"}, {**TICKET, "window": "3d"}]
SERVER = {"namespace": "blockdraft", "instance": "pod:9100"}
VERIFIER = {"namespace": "blockdraft", "instance": "pod:9101"}
FAILED = 'server_requests_total{outcome="unavailable"}'
FIRST = 'server_time_to_first_token_seconds_bucket{le="2.5"}'
HELD = "server_event_loop_longest_hold_seconds{}"
EXPIRY = "server_tls_certificate_expiry_timestamp_seconds{}"
DRAFTS = 'verifier_drafts_total{source="drafter"}'
ACCEPTED = 'verifier_accepted_tokens_total{source="drafter"}'
ATTACHED, LATE = "verifier_drafter_attached{}", "verifier_late_drafts_total{}"
REPAIRS = 'verifier_sync_repairs_total{cause="stream_broken"}'
COMPILED, ONCE = "verifier_recompilations_total{}", "0x30 1x90"
CLASSES = 'verifier_numerics_classes{dtype="bfloat16"}'
RECORDED_SEQUENCES = 'drafter_training_samples_total{outcome="written"}'
LEARNED = "trainer_steps_total{}"
# What differs from health, after how many minutes, and the labels of the alerts that then fire.
SCENARIOS: list[tuple[str, Series | None, int, list[dict[str, str]]]] = [
    ("ErrorBudgetBurns", {FAILED: rising(10)}, 8 * HOUR, BURNS),
    ("ErrorBudgetBurns", {FAILED: rising(3)}, 8 * HOUR, BURNS[1:]),
    ("ErrorBudgetBurns", {FAILED: rising(0.6)}, 8 * HOUR, BURNS[2:]),
    ("ErrorBudgetBurns", {FAILED: rising(0.2)}, 8 * HOUR, []),
    ("FirstTokensSlow", {FIRST: rising(12)}, 8 * HOUR, BURNS),
    ("FirstTokensSlow", {FIRST: rising(36)}, 8 * HOUR, BURNS[1:]),
    ("FirstTokensSlow", {FIRST: rising(54)}, 8 * HOUR, BURNS[2:]),
    ("MetricsAbsent", None, 30, [PAGE]),
    ("Stalled", {"verifier_steps_total{}": steady(600)}, 30, [PAGE]),
    ("DraftingSlowsDown", {ACCEPTED: rising(240)}, HOUR, [TICKET]),
    (
        "AcceptanceCollapsed",
        {ACCEPTED: f"0+2400x{DAY} {2400 * DAY}+600x{3 * HOUR}"},
        DAY + 2 * HOUR,
        [TICKET],
    ),
    ("SyncRepairs", {REPAIRS: rising(5)}, HOUR, [{**TICKET, "cause": "stream_broken"}]),
    ("Recompiled", {COMPILED: ONCE}, 45, [TICKET]),
    ("Recompiled", {"drafter_recompilations_total{}": ONCE}, 45, [TICKET]),
    ("Recompiled", {COMPILED: ONCE}, 90, []),
    ("Inexact", {CLASSES: steady(2)}, 5, [{**TICKET, **VERIFIER, "dtype": "bfloat16"}]),
    ("Inexact", {'verifier_numerics_classes{dtype="float32"}': steady(7)}, 5, []),
    ("DrafterAway", {ATTACHED: "1x60 0x60"}, 90, [{**TICKET, **VERIFIER}]),
    ("DrafterAway", {ATTACHED: steady(0)}, 90, []),
    ("DrafterLate", {LATE: rising(2), DRAFTS: rising(1)}, HOUR, [{**TICKET, **VERIFIER}]),
    # Late now and then, as any drafter is on a busy machine.
    ("DrafterLate", {LATE: rising(2)}, HOUR, []),
    ("LearningStopped", {RECORDED_SEQUENCES: rising(1)}, 8 * HOUR, [TICKET]),
    ("LearningStopped", {RECORDED_SEQUENCES: rising(1)}, 5 * HOUR, []),
    # A step at night, when nobody asks, is enough.
    (
        "LearningStopped",
        {RECORDED_SEQUENCES: rising(1), LEARNED: f"0x{6 * HOUR} 1x{3 * HOUR}"},
        8 * HOUR,
        [],
    ),
    ("QueueGrows", {"verifier_waiting_sequences{}": steady(8)}, HOUR, [{**TICKET, **VERIFIER}]),
    ("ReplayStorm", {"server_replays_total{}": rising(30)}, HOUR, [PAGE]),
    ("PagesExhausted", {"verifier_preemptions_total{}": rising(3)}, HOUR, [TICKET]),
    ("EventLoopHeld", {HELD: steady(0.5)}, HOUR, [{**TICKET, **SERVER}]),
    # The clock of these begins in 1970.
    ("CertificateExpires", {EXPIRY: steady(10 * 86400)}, HOUR, [{**TICKET, **SERVER}]),
    (
        "CertificateExpires",
        {EXPIRY: steady(86400)},
        HOUR,
        [{**TICKET, **SERVER}, {**PAGE, **SERVER}],
    ),
    ("CertificateExpires", {EXPIRY: steady(0)}, HOUR, []),
]


def inputs(changes: Series | None) -> list[dict[str, str]]:
    if changes is None:
        return []
    assert set(changes) <= set(HEALTHY)
    found = []
    for series, values in {**HEALTHY, **changes}.items():
        name, _, labels = series.partition("{")
        port = 9100 + ("server", "verifier", "drafter", "trainer").index(name.split("_")[0])
        more = "," if labels != "}" else ""
        where = f'{LABELS},instance="pod:{port}"{more}{labels}'
        found.append({"series": f"blockdraft_{name}{{{where}", "values": values})
    return found


def expected(name: str, minutes: int, labels: list[dict[str, str]]) -> Manifest:
    scope = {} if name == "BlockdraftMetricsAbsent" else {"namespace": "blockdraft"}
    alerts = [{"exp_labels": {**scope, **each}} for each in labels]
    return {"eval_time": f"{minutes}m", "alertname": name, "exp_alerts": alerts}


def check(tests: list[Manifest], folder: Path) -> None:
    groups = [
        {"name": group["name"], "rules": [{**rule} for rule in group["rules"]]} for group in GROUPS
    ]
    for group in groups:
        for rule in group["rules"]:
            rule.pop("annotations", None)
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    tested = {"rule_files": ["rules.yaml"], "evaluation_interval": "5m", "tests": tests}
    (folder / "tests.yaml").write_text(yaml.safe_dump(tested))
    run("promtool", "test", "rules", folder / "tests.yaml")


def test_rules_are_rules() -> None:
    run("promtool", "check", "rules", SOURCE)


def test_generated_files_are_current() -> None:
    subprocess.run([sys.executable, str(DEPLOY / "generate.py"), "--check"], check=True)


def test_metrics_of_rules_exist() -> None:
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    for rule in RULES:
        assert names_in(rule["expr"]) <= registered(), rule
        assert set(re.findall(r"blockdraft:[\w:]+", rule["expr"])) <= recorded


def test_every_alert_has_a_page_and_a_scenario_in_which_it_fires() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "runbooks").glob("Blockdraft*.md")}
    assert pages == set(ALERTS)
    assert {f"Blockdraft{name}" for name, _, _, labels in SCENARIOS if labels} == set(ALERTS)
    for rule in RULES:
        if "alert" in rule:
            page = f"{{{{ $externalLabels.blockdraft_docs }}}}/runbooks/{rule['alert']}/"
            assert rule["annotations"]["runbook_url"] == page


@pytest.mark.parametrize("site", ["https://docs.example", ""])
def test_runbooks_are_pages_of_the_site_that_prometheus_is_told_of(
    site: str, tmp_path: Path
) -> None:
    rule = next(one for one in RULES if one.get("alert") == "BlockdraftMetricsAbsent")
    alert = {
        "exp_labels": PAGE,
        "exp_annotations": {
            **rule["annotations"],
            "runbook_url": f"{site}/runbooks/BlockdraftMetricsAbsent/",
        },
    }
    test = {
        "external_labels": {"blockdraft_docs": site} if site else {},
        "alert_rule_test": [
            {"eval_time": "30m", "alertname": rule["alert"], "exp_alerts": [alert]}
        ],
    }
    tested = {"rule_files": [str(SOURCE)], "tests": [test]}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tested))
    run("promtool", "test", "rules", tmp_path / "tests.yaml")


def test_recorded_values_are_what_they_are_called(tmp_path: Path) -> None:
    # Rates are not exact to the last bit.
    samples = [
        {
            "expr": f"abs(sum({name}) - {value}) < bool 1e-9",
            "eval_time": "1h",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for name, value in RECORDED.items()
    ]
    check([{"interval": "1m", "input_series": inputs({}), "promql_expr_test": samples}], tmp_path)


def test_no_alert_fires_in_health(tmp_path: Path) -> None:
    at = DAY + 2 * HOUR
    silent = [expected(name, at, []) for name in ALERTS]
    check([{"interval": "1m", "input_series": inputs({}), "alert_rule_test": silent}], tmp_path)


def test_alerts_fire(tmp_path: Path) -> None:
    tests = [
        {
            "interval": "1m",
            "input_series": inputs(changes),
            "alert_rule_test": [expected(f"Blockdraft{name}", minutes, labels)],
        }
        for name, changes, minutes, labels in SCENARIOS
    ]
    check(tests, tmp_path)
