"""The dashboard faults: what went wrong, and what was done about it."""

from grafana.panels import CHOSEN, Dashboard, Panel, quantiles, rate, series, total

FAULTS = Dashboard(
    "faults",
    {
        "Exactness and drafting": [
            [
                Panel(
                    "Verifiers with a drafter",
                    {"{{instance}}": series("verifier_drafter_attached")},
                    threshold=1,
                    below=True,
                ),
                Panel(
                    "Compiled after warm-up",
                    {
                        "verifier": total("verifier_recompilations_total"),
                        "drafter": total("drafter_recompilations_total"),
                    },
                    description="Anything but 0 is a defect.",
                    threshold=1,
                ),
                Panel(
                    "Classes of numerics",
                    {
                        "{{instance}}": series("verifier_numerics_classes"),
                        "{{instance}} padded shapes": series("verifier_padded_shapes"),
                    },
                    description="1: steps are batch-invariant, and drafted completions are exactly "
                    "the plain ones; more: they may differ where two tokens are nearly as likely. "
                    "Shapes with other numerics are padded.",
                    threshold=2,
                ),
            ],
            [
                Panel(
                    "Repairs of a lost sync",
                    {"{{cause}}": rate("verifier_sync_repairs_total", "cause")},
                    "reqps",
                ),
                Panel(
                    "Sequences that the drafter refused",
                    {"{{code}}": rate("drafter_refused_sequences_total", "code")},
                    "reqps",
                ),
                Panel(
                    "Drafts that came too late",
                    {"per second": rate("verifier_late_drafts_total")},
                    "reqps",
                ),
            ],
        ],
        "Requests": [
            [
                Panel("Streams replayed", {"per second": rate("server_replays_total")}, "reqps"),
                Panel(
                    "Requests that failed",
                    {
                        "{{outcome}}": rate(
                            "server_requests_total", "outcome", ',outcome!~"stop|length|cancelled"'
                        )
                    },
                    "reqps",
                ),
                Panel(
                    "Processes started",
                    {"{{instance}}": f"process_start_time_seconds{{{CHOSEN}}} * 1000"},
                    "dateTimeFromNow",
                    kind="stat",
                ),
            ],
        ],
        "Event loop and certificates": [
            [
                Panel(
                    "Event loop held, longest",
                    {"{{instance}}": series("server_event_loop_longest_hold_seconds")},
                    "s",
                    "Of the last one to two minutes; no request is answered meanwhile.",
                    threshold=0.2,
                ),
                Panel("Event loop held", quantiles("server_event_loop_hold_seconds"), "s"),
                Panel(
                    "Certificate expires",
                    {
                        "{{instance}}": (
                            series("server_tls_certificate_expiry_timestamp_seconds")
                            + " * 1000 > 0"
                        )
                    },
                    "dateTimeFromNow",
                    "Empty without TLS.",
                    kind="stat",
                ),
            ],
        ],
        "Routing": [
            [
                Panel(
                    "Verifiers, as servers see them",
                    {"{{state}}": total("server_verifiers", "state")},
                    description="A server counts those it knows; a verifier that leaves ends its "
                    "streams.",
                ),
                Panel(
                    "Names of verifiers not resolved",
                    {"per second": rate("server_name_resolution_failures_total")},
                    "reqps",
                    "Addresses that were known stay in use.",
                ),
            ],
        ],
    },
)
