"""What Grafana's dashboards are made of, as plain dictionaries.

Grafana fills in whatever is left out: only what differs from its defaults is said.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Json = dict[str, Any]
SCHEMA_VERSION = 41
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24
_HEIGHT = 8


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        title: What it shows.
        queries: PromQL with the name of its series, which may have labels: `{{source}}`.
        unit: Grafana's name of the unit: `s`, `percentunit`, `reqps`, `short` and so on.
        description: What to know when reading it.
        threshold: A value above which (or, if `below`, under which) it turns red.
        below: See `threshold`.
        kind: `timeseries`, or `stat` for the newest value.
        stacked: Whether the series add up to a whole.
    """

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    description: str = ""
    threshold: float | None = None
    below: bool = False
    kind: Literal["timeseries", "stat"] = "timeseries"
    stacked: bool = False

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
                for index, (expression, legend) in enumerate(self.queries)
            ],
        }


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page of panels.

    Attributes:
        name: Last part of its uid, and the file it is kept in.
        title: What it is called.
        rows: Panels side by side.
    """

    name: str
    title: str
    rows: Sequence[Sequence[Panel]] = dataclasses.field(default_factory=tuple)

    def json(self) -> Json:
        """Return what Grafana imports."""
        panels: list[Json] = []
        for row, members in enumerate(self.rows):
            width = _COLUMNS // len(members)
            for column, panel in enumerate(members):
                place = (len(panels) + 1, column * width, row * _HEIGHT, width)
                panels.append(panel.json(*place))
        return {
            "uid": f"blockdraft-{self.name}",
            "title": f"blockdraft / {self.title}",
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
            "panels": panels,
        }


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
    "query": {
        "query": 'label_values({__name__=~"blockdraft_.+"}, instance)',
        "refId": "instances",
    },
    "refresh": 2,
    "sort": 1,
    "multi": True,
    "includeAll": True,
    "allValue": ".*",
    "current": {"text": ["All"], "value": ["$__all"]},
}
