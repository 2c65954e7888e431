"""Writes the files of `deploy/` that are made of other files there.

These are the custom kinds that hold the rules, PrometheusRule and Rules for Google's managed
Prometheus, and Grafana's dashboards.

`make docs` runs this file, `make lint` runs it with `--check`.
"""

import argparse
import json
import sys
import textwrap
from pathlib import Path

from grafana.capacity import CAPACITY
from grafana.faults import FAULTS
from grafana.learning import LEARNING
from grafana.service import SERVICE
from grafana.speculation import SPECULATION

HERE = Path(__file__).parent
RULES = HERE / "prometheus" / "rules.yaml"
COMPONENTS = HERE / "k8s" / "components"


def generated() -> dict[Path, str]:
    """Return the text of every generated file."""
    rules = RULES.read_text(encoding="utf-8")
    operator = manifest("monitoring.coreos.com/v1", "PrometheusRule", rules)
    dashboards = {
        HERE / "grafana" / f"{dashboard.name}.json": json.dumps(
            dashboard.json(), indent=1, ensure_ascii=False
        )
        + "\n"
        for dashboard in (SERVICE, SPECULATION, LEARNING, CAPACITY, FAULTS)
    }
    return dashboards | {
        COMPONENTS / "monitoring-gmp" / "rules.yaml": manifest(
            "monitoring.googleapis.com/v1", "Rules", rules
        ),
        COMPONENTS / "monitoring-operator" / "prometheusrule.yaml": operator,
    }


def manifest(version: str, kind: str, rules: str) -> str:
    """Return a `PrometheusRule` or `Rules`, whose `spec` is the content of a file of rules.

    The comment that the file begins with is left out.
    """
    groups = rules[rules.index("groups:\n") :]
    return (
        "# Made of deploy/prometheus/rules.yaml by `make docs`; edit that.\n"
        f"apiVersion: {version}\nkind: {kind}\nmetadata:\n  name: blockdraft\nspec:\n"
        + textwrap.indent(groups, "  ")
    )


def main() -> int:
    """Write the files, or say which of them are not current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if not current")
    check = parser.parse_args().check
    stale = {path: text for path, text in generated().items() if not _holds(path, text)}
    for path, text in stale.items():
        if check:
            print(f"{path.relative_to(HERE.parent)} is not current: make docs", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
    if not stale:
        print("the generated files of deploy/ are current")
    return int(check and bool(stale))


def _holds(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
