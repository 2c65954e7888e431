"""Parts of Grafana's dashboards: queries written shorter, panels as plain dictionaries.

Queries over a window use Grafana's `$__rate_interval`. All are of the processes chosen in
`instance`, but for series that deploy/prometheus/rules.yaml records, which are shown as recorded.
Panels say only where they differ from Grafana's defaults.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Json = dict[str, Any]
SCHEMA_VERSION = 41
_DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24
_HEIGHT = 8
_DATASOURCE_VARIABLE: Json = {
    "name": "datasource",
    "label": "Prometheus",
    "type": "datasource",
    "query": "prometheus",
}
_INSTANCE_VARIABLE: Json = {
    "name": "instance",
    "label": "Process",
    "type": "query",
    "datasource": _DATASOURCE,
    "query": {"query": 'label_values({__name__=~"blockdraft_.+"}, instance)', "refId": "instances"},
    "refresh": 2,
    "sort": 1,
    "multi": True,
    "includeAll": True,
    "allValue": ".*",
    "current": {"text": ["All"], "value": ["$__all"]},
}

CHOSEN = 'instance=~"$instance"'


def series(name: str, labels: str = "") -> str:
    """Return a metric of the chosen processes; further matchers stand each after a comma."""
    return f"blockdraft_{name}{{{CHOSEN}{labels}}}"


def rate(name: str, by: str = "", labels: str = "") -> str:
    """Return the rate of a counter, summed but for the labels `by`."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({series(name, labels)}[$__rate_interval]))"


def total(name: str, by: str = "") -> str:
    """Return a gauge, summed over processes but for the labels `by`."""
    grouping = f" by ({by}) " if by else ""
    return f"sum{grouping}({series(name)})"


def mean(name: str, by: str = "") -> str:
    """Return the mean of a histogram's observations."""
    return share(rate(f"{name}_sum", by), rate(f"{name}_count", by))


def quantiles(name: str) -> dict[str, str]:
    """Return median, 95th and 99th percentile of a histogram, by their names."""
    buckets = rate(f"{name}_bucket", "le")
    return {
        f"{quantile} %": f"histogram_quantile({quantile / 100:g}, {buckets})"
        for quantile in (50, 95, 99)
    }


def share(part: str, whole: str) -> str:
    """Return a part of a whole, and nothing while the whole is 0."""
    return f"{part} / ({whole} > 0)"


# Events, each drawn as a line across all panels.
_ANNOTATIONS: list[Json] = [
    {
        "name": name,
        "datasource": _DATASOURCE,
        "enable": True,
        "expr": expression,
        "titleFormat": title,
        "iconColor": color,
        "step": "30s",
    }
    for name, title, color, expression in (
        (
            "Restarts",
            "{{instance}} started",
            "red",
            f"changes(process_start_time_seconds{{{CHOSEN}}}[1m]) > 0",
        ),
        (
            "Drafter versions",
            "{{instance}}: {{kind}}",
            "blue",
            f"increase({series('drafter_version_changes_total')}[1m]) > 0",
        ),
    )
]


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel."""

    title: str  # its title
    # PromQL by the name of its series, which may have labels: `{{source}}`.
    queries: Mapping[str, str]
    # Grafana's name of the unit: `s`, `percentunit`, `reqps`, `short` and so on.
    unit: str = "short"
    description: str = ""  # an explanation for its readers
    threshold: float | None = None  # A value above which (or, if `below`, under which) it turns red
    below: bool = False  # see `threshold`
    # `timeseries`, or `stat` for the newest value.
    kind: Literal["timeseries", "stat"] = "timeseries"
    stacked: bool = False  # whether the series add up to a whole

    def json(self, number: int, x: int, y: int, width: int) -> Json:
        """Return the panel at a place of the grid of 24 columns."""
        defaults: Json = {"unit": self.unit, "noValue": "No traffic"}
        if self.unit in ("s", "percentunit", "reqps", "short", "bytes"):
            defaults["min"] = 0
        if self.threshold is not None:
            calm, alarm = ("red", "green") if self.below else ("green", "red")
            steps = [{"color": calm, "value": None}, {"color": alarm, "value": self.threshold}]
            defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        if self.kind == "timeseries":
            defaults["custom"] = {
                "fillOpacity": 40 if self.stacked else 0,
                "stacking": {"mode": "normal" if self.stacked else "none"},
                "thresholdsStyle": {"mode": "line" if self.threshold is not None else "off"},
            }
        return {
            "id": number,
            "title": self.title,
            "description": self.description,
            "type": self.kind,
            "datasource": _DATASOURCE,
            "gridPos": {"h": _HEIGHT, "w": width, "x": x, "y": y},
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "targets": [
                {
                    "refId": chr(ord("A") + index),
                    "datasource": _DATASOURCE,
                    "expr": expression,
                    "legendFormat": legend,
                }
                for index, (legend, expression) in enumerate(self.queries.items())
            ],
        }


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page of sections, each of rows of panels."""

    name: str  # its title, the last part of its uid, and its file's name
    sections: Mapping[str, Sequence[Sequence[Panel]]]  # the rows of panels by the title above them

    def json(self) -> Json:
        """Return the dashboard in the form that Grafana imports."""
        panels: list[Json] = []
        numbers = itertools.count(1)
        y = 0
        for title, rows in self.sections.items():
            panels.append(
                {
                    "id": next(numbers),
                    "type": "row",
                    "title": title,
                    "collapsed": False,
                    "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": y},
                    "panels": [],
                }
            )
            y += 1
            for row in rows:
                width = _COLUMNS // len(row)
                panels += [
                    panel.json(next(numbers), column * width, y, width)
                    for column, panel in enumerate(row)
                ]
                y += _HEIGHT
        return {
            "uid": f"blockdraft-{self.name}",
            "title": f"blockdraft / {self.name}",
            "tags": ["blockdraft"],
            "schemaVersion": SCHEMA_VERSION,
            "editable": True,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "links": [
                {
                    "type": "dashboards",
                    "title": "blockdraft",
                    "tags": ["blockdraft"],
                    "asDropdown": False,
                    "includeVars": True,
                    "keepTime": True,
                }
            ],
            "templating": {"list": [_DATASOURCE_VARIABLE, _INSTANCE_VARIABLE]},
            "annotations": {"list": _ANNOTATIONS},
            "panels": panels,
        }
