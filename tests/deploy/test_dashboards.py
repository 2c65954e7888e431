"""The dashboards are of metrics that exist, leave none out, and are put together soundly."""

import re
from pathlib import Path

import pytest
import yaml
from tests.deploy.tools import DASHBOARDS, DEPLOY, names_in, panels, queries, registered, run

pytestmark = pytest.mark.deploy
# Of the Prometheus client, and of GKE's TPU device plugin.
FOREIGN = {
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "duty_cycle",
    "memory_used",
    "memory_total",
}


def recorded() -> dict[str, str]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    return {rule["record"]: rule["expr"] for rule in rules if "record" in rule}


def test_queries_are_promql(tmp_path: Path) -> None:
    rules = [{"record": f"q{i}", "expr": one.expression} for i, one in enumerate(queries())]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    run("promtool", "check", "rules", file)


def test_queries_name_what_exists() -> None:
    for query in queries():
        known = names_in(query.expression) | set(re.findall(r"blockdraft:[\w:]+", query.expression))
        assert known <= registered() | set(recorded()), query
        assert known or any(name in query.expression for name in FOREIGN), query


def test_every_metric_is_shown() -> None:
    shown = {name for query in queries() for name in names_in(query.expression)}
    for query in queries():
        for name in re.findall(r"blockdraft:[\w:]+", query.expression):
            shown |= names_in(recorded()[name])
            for inner in re.findall(r"blockdraft:[\w:]+", recorded()[name]):
                shown |= names_in(recorded()[inner])
    # Of a histogram one series is enough.
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in registered()}
    assert families == {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboards_are_sound(name: str) -> None:
    dashboard = DASHBOARDS[name]
    assert dashboard["uid"] == f"blockdraft-{name}"
    assert [one["name"] for one in dashboard["templating"]["list"]] == ["datasource", "instance"]
    rows = [one for one in dashboard["panels"] if one["type"] == "row"]
    assert dashboard["panels"][0] in rows
    every = [*rows, *panels(name)]
    assert len({panel["id"] for panel in every}) == len(every)
    assert len({panel["title"] for panel in every}) == len(every)
    cells = [
        (x, place["y"])
        for place in (panel["gridPos"] for panel in every)
        for x in range(place["x"], place["x"] + place["w"])
    ]
    assert len(cells) == len(set(cells))
    assert all(0 <= x < 24 for x, _ in cells)
    for panel in panels(name):
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["fieldConfig"]["defaults"]["unit"]
