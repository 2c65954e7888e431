"""The dashboard faults: what went wrong, and what was done about it."""

from grafana.panels import Dashboard, Panel
from grafana.queries import CHOSEN, quantiles, rate, series, total

FAULTS = Dashboard(
    "faults",
    "faults",
    [
        [
            Panel(
                "Verifiers with a drafter",
                [(series("verifier_drafter_attached"), "{{instance}}")],
                threshold=1,
                below=True,
            ),
            Panel(
                "Compiled after warm-up",
                [
                    (total("verifier_recompilations_total"), "verifier"),
                    (total("drafter_recompilations_total"), "drafter"),
                ],
                description="Anything but 0 is a defect.",
                threshold=1,
            ),
            Panel(
                "Classes of rounding",
                [
                    (series("verifier_rounding_classes"), "{{instance}}"),
                    (series("verifier_padded_shapes"), "{{instance}} padded shapes"),
                ],
                description="1: drafted answers are exactly the plain ones; more: they may "
                "differ where two tokens are nearly as likely. Shapes that round otherwise are "
                "padded.",
                threshold=2,
            ),
        ],
        [
            Panel("Streams replayed", [(rate("server_replays_total"), "per second")], "reqps"),
            Panel(
                "Requests that failed",
                [
                    (
                        rate(
                            "server_requests_total",
                            "outcome",
                            ',outcome!~"stop|length|cancelled"',
                        ),
                        "{{outcome}}",
                    )
                ],
                "reqps",
            ),
            Panel(
                "Processes started",
                [(f"process_start_time_seconds{{{CHOSEN}}} * 1000", "{{instance}}")],
                "dateTimeFromNow",
                kind="stat",
            ),
        ],
        [
            Panel(
                "Repairs of the sync",
                [(rate("verifier_sync_repairs_total", "cause"), "{{cause}}")],
                "reqps",
            ),
            Panel(
                "Sequences that the drafter refused",
                [(rate("drafter_refused_sequences_total", "code"), "{{code}}")],
                "reqps",
            ),
            Panel(
                "Proposals that came too late",
                [(rate("verifier_late_drafts_total"), "per second")],
                "reqps",
            ),
        ],
        [
            Panel(
                "Event loop held, longest",
                [(series("server_event_loop_longest_hold_seconds"), "{{instance}}")],
                "s",
                "Of the last one to two minutes; nobody is answered meanwhile.",
                threshold=0.2,
            ),
            Panel("Event loop held", quantiles("server_event_loop_hold_seconds"), "s"),
            Panel(
                "Certificate expires",
                [
                    (
                        f"{series('server_tls_certificate_expiry_timestamp_seconds')} * 1000 > 0",
                        "{{instance}}",
                    )
                ],
                "dateTimeFromNow",
                "Empty without TLS.",
                kind="stat",
            ),
        ],
        [
            Panel(
                "Verifiers, as servers see them",
                [(total("server_verifiers", "state"), "{{state}}")],
                description="Each server counts those it knows; what leaves ends its streams.",
            ),
            Panel(
                "Names of verifiers not looked up",
                [(rate("server_lookup_failures_total"), "per second")],
                "reqps",
                "Those that were known stay in use.",
            ),
        ],
    ],
)
