"""The queries of the dashboards, written shorter.

Those over a window use Grafana's `$__rate_interval`; all are of the processes chosen in `instance`.
"""

CHOSEN = 'instance=~"$instance"'


def series(name: str, labels: str = "") -> str:
    """Return a metric of the chosen processes.

    Args:
        name: Without `blockdraft_`.
        labels: Further matchers, each after a comma.
    """
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
    """Return the mean of what a histogram observed."""
    return share(rate(f"{name}_sum", by), rate(f"{name}_count", by))


def quantiles(name: str) -> list[tuple[str, str]]:
    """Return median, 95th and 99th percentile of a histogram, each with its name."""
    buckets = rate(f"{name}_bucket", "le")
    return [
        (f"histogram_quantile({quantile / 100:g}, {buckets})", f"{quantile} %")
        for quantile in (50, 95, 99)
    ]


def share(part: str, whole: str) -> str:
    """Return a part of a whole, and nothing while the whole is 0."""
    return f"{part} / ({whole} > 0)"
