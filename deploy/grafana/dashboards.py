"""The dashboards: service, speculation, capacity, faults.

What deploy/prometheus/rules.yaml records is shown as recorded, for all processes; everything else
is of the chosen ones.
"""

from grafana.panels import Dashboard, Panel
from grafana.queries import CHOSEN, mean, quantiles, rate, series, share, total

SERVICE = Dashboard(
    "service",
    "service",
    [
        [
            Panel(
                "Requests that fail",
                [("blockdraft:request_errors:ratio_rate1h", "{{namespace}}")],
                "percentunit",
                "Of the last hour, for reasons of the service. The objective allows 0.5 %.",
                threshold=0.005,
                kind="stat",
            ),
            Panel(
                "First tokens later than 2.5 s",
                [("blockdraft:slow_first_tokens:ratio_rate1h", "{{namespace}}")],
                "percentunit",
                "Of the last hour. The objective allows 5 %.",
                threshold=0.05,
                kind="stat",
            ),
            Panel(
                "Error budget: how fast it is spent",
                [
                    ("blockdraft:request_errors:ratio_rate1h / 0.005", "1 h"),
                    ("blockdraft:request_errors:ratio_rate6h / 0.005", "6 h"),
                    ("blockdraft:request_errors:ratio_rate3d / 0.005", "3 d"),
                ],
                description="1 lasts exactly a month; 14.4 over an hour is paged.",
                threshold=14.4,
            ),
        ],
        [
            Panel(
                "Requests by outcome",
                [(rate("server_requests_total", "outcome"), "{{outcome}}")],
                "reqps",
                stacked=True,
            ),
            Panel(
                "Requests under way",
                [
                    (total("server_requests_waiting"), "without a token yet"),
                    (total("server_requests_running"), "streaming"),
                ],
            ),
        ],
        [
            Panel(
                "Requests by tenant",
                [(rate("server_tenant_requests_total", "tenant"), "{{tenant}}")],
                "reqps",
                stacked=True,
            ),
            Panel(
                "Tokens by tenant",
                [(rate("server_tenant_tokens_total", "tenant"), "{{tenant}}")],
                description="Of prompts and of answers.",
                stacked=True,
            ),
            Panel(
                "Refused by tenant",
                [
                    (
                        rate(
                            "server_tenant_requests_total",
                            "tenant",
                            ',outcome=~"tenant_limit|resource_exhausted"',
                        ),
                        "{{tenant}}",
                    )
                ],
                "reqps",
                "Over the tenant's limits, or while the queue was full.",
            ),
        ],
        [
            Panel(
                "Time to first token",
                quantiles("server_time_to_first_token_seconds"),
                "s",
                threshold=2.5,
            ),
            Panel(
                "Time between tokens",
                quantiles("server_inter_token_latency_seconds"),
                "s",
                "Between two messages, divided by the tokens of the later one: an accepted draft "
                "comes as one message.",
            ),
            Panel("Time of a request", quantiles("server_request_latency_seconds"), "s"),
        ],
        [
            Panel(
                "Tokens per second",
                [
                    (rate("server_output_tokens_total"), "of answers"),
                    (rate("server_prompt_tokens_total"), "of prompts"),
                ],
            ),
            Panel(
                "Sequences ended",
                [(rate("verifier_finished_sequences_total", "reason"), "{{reason}}")],
                "reqps",
            ),
        ],
        [
            Panel(
                "Versions that are running",
                [
                    (
                        f"sum by (version, model) ({series('server_build_info')})",
                        "server {{version}}: {{model}}",
                    ),
                    (
                        f"sum by (version, model, target, dtype) ({series('verifier_build_info')})",
                        "verifier {{version}}: {{model}} {{target}}, {{dtype}}",
                    ),
                    (
                        "sum by (version, method, fingerprint, target) "
                        f"({series('drafter_build_info')})",
                        "drafter {{version}}: {{method}} {{fingerprint}} for {{target}}",
                    ),
                ],
                description="How many processes of each. Two of a kind are a roll-out.",
            ),
        ],
    ],
)

SPECULATION = Dashboard(
    "speculation",
    "speculation",
    [
        [
            Panel(
                "Estimated speed-up",
                [("blockdraft:estimated_speedup:rate5m", "{{namespace}}")],
                "short",
                "Over plain decoding, if a plain step took as long as verifying takes: the most "
                "that drafting can gain.",
                threshold=1,
                below=True,
                kind="stat",
            ),
            Panel(
                "Step time saved",
                [("blockdraft:saved_step_seconds:rate5m", "{{namespace}}")],
                "s",
                "In each second, on the same assumption; times the chips of the verifier these "
                "are chip-seconds.",
                kind="stat",
            ),
            Panel(
                "τ, tokens of a verification",
                [
                    ("blockdraft:acceptance_length:rate5m", "all"),
                    ("blockdraft:acceptance_length_by_source:rate5m", "{{source}}"),
                ],
                description="Of all verifications, and of those of each source's proposals. "
                "Plain decoding is 1.",
                threshold=1,
                below=True,
            ),
        ],
        [
            Panel(
                "Accepted up to a position",
                [("blockdraft:acceptance_by_position:rate5m", "{{source}} {{position}}")],
                "percentunit",
                "Of all proposals; with the adaptive policy not every one is long enough for "
                "the later positions.",
            ),
            Panel(
                "Drafted tokens accepted",
                [
                    (
                        share(
                            rate("verifier_accepted_tokens_total", "source"),
                            rate("verifier_drafted_tokens_total", "source"),
                        ),
                        "{{source}}",
                    )
                ],
                "percentunit",
            ),
            Panel(
                "Draft length chosen",
                [
                    (
                        share(
                            rate("verifier_drafted_tokens_total", "source"),
                            rate("verifier_drafts_total", "source"),
                        ),
                        "{{source}}",
                    )
                ],
                description="Tokens of a proposal that is verified.",
            ),
        ],
        [
            Panel(
                "Where step time goes",
                [(rate("verifier_step_seconds_sum", "part"), "{{part}}")],
                "s",
                "Seconds of a second: the target, waiting while the drafter computes, waiting "
                "beyond that, and the host.",
                stacked=True,
            ),
            Panel(
                "Tokens by where they come from",
                [
                    (rate("verifier_accepted_tokens_total", "source"), "{{source}}"),
                    (rate("verifier_verifications_total"), "the target's own"),
                ],
                stacked=True,
            ),
            Panel(
                "Verifications with a proposal",
                [
                    (
                        f"{rate('verifier_drafts_total', 'source')} / on () group_left () "
                        f"({rate('verifier_verifications_total')} > 0)",
                        "{{source}}",
                    )
                ],
                "percentunit",
            ),
        ],
        [
            Panel(
                "Step of the drafter",
                [(mean("drafter_step_seconds", "phase"), "{{phase}}")],
                "s",
                "The forward pass, and from arrival to departure.",
            ),
            Panel(
                "Work of the drafter",
                [
                    (rate("drafter_steps_total"), "requests"),
                    (rate("drafter_proposals_total"), "proposals"),
                    (rate("drafter_drafted_tokens_total"), "tokens"),
                    (rate("drafter_appended_positions_total"), "positions appended"),
                ],
            ),
            Panel(
                "Sequences of a draft request",
                [(mean("drafter_step_sequences"), "mean")],
            ),
        ],
        [
            Panel(
                "Learning: τ by version",
                [
                    (
                        share(
                            rate("drafter_version_gained_tokens_total", "version, context"),
                            rate("drafter_version_verifications_total", "version, context"),
                        ),
                        "{{version}} {{context}}",
                    )
                ],
                description="Of the drafter's own proposals; in contexts that the version made "
                "itself, and in those that older weights made in part.",
                threshold=1,
                below=True,
            ),
            Panel(
                "Learning: version that drafts",
                [
                    (series("drafter_version"), "{{instance}}"),
                    (rate("drafter_version_changes_total", "kind"), "{{kind}}, per second"),
                ],
                description="It falls when a version accepted less than the one before it.",
            ),
            Panel(
                "Learning: sequences recorded",
                [(rate("drafter_recordings_total", "outcome"), "{{outcome}}")],
                "reqps",
                "Written, kept out by caller or tenant, or dropped.",
                stacked=True,
            ),
            Panel(
                "Learning: recordings on disk",
                [(total("drafter_recorded_bytes"), "recordings")],
                "bytes",
            ),
        ],
        [
            Panel(
                "Learning: steps",
                [
                    (rate("drafter_learning_steps_total", "instance"), "{{instance}}"),
                    (
                        rate("drafter_learning_thrown_away_steps_total", "instance"),
                        "{{instance}}, thrown away",
                    ),
                ],
                "reqps",
                "Of the trainer, as each drafter reads them in its folder; those thrown away had a "
                "loss or gradients that are no numbers.",
            ),
            Panel(
                "Learning: share of the time that it waits",
                [(rate("drafter_learning_waited_seconds_total", "instance"), "{{instance}}")],
                "percentunit",
                "For what is decoded; at 100 % the service is never idle, and nothing is learned.",
            ),
            Panel(
                "Learning: time since the last step",
                [
                    (
                        f"time() - ({series('drafter_learning_last_step_timestamp_seconds')} > 0)",
                        "{{instance}}",
                    )
                ],
                "s",
                "It also grows when everything was learned from often enough.",
            ),
            Panel(
                "Learning: loss of the last step",
                [(series("drafter_learning_loss"), "{{instance}}")],
            ),
        ],
        [
            Panel(
                "Learning: τ on held-out recordings",
                [(series("drafter_learning_held_out_tau"), "{{drafter}}")],
                description="At the last comparison: of the candidate, and of the version that "
                "served then. 0 before the first.",
                threshold=1,
                below=True,
            ),
            Panel(
                "Learning: steps of the candidate",
                [(series("drafter_learning_candidate_steps"), "{{instance}}")],
                description="It begins anew with each version that another hand promotes, and "
                "when a candidate is given up.",
            ),
            Panel(
                "Learning: candidates",
                [
                    (rate("drafter_learning_looks_total"), "compared"),
                    (rate("drafter_learning_candidates_total", "outcome"), "{{outcome}}"),
                ],
                "reqps",
            ),
            Panel(
                "Learning: recordings refused",
                [(series("drafter_learning_refused_recordings"), "{{instance}}")],
                description="Damaged, or of another target, other layers or another projection.",
            ),
        ],
    ],
)

CAPACITY = Dashboard(
    "capacity",
    "capacity",
    [
        [
            Panel(
                "Pages of the KV cache in use",
                [
                    (
                        share(total("verifier_pages_used"), total("verifier_pages")),
                        "by live sequences",
                    )
                ],
                "percentunit",
                threshold=0.95,
            ),
            Panel(
                "Sequences",
                [
                    (total("verifier_running_sequences"), "decoded"),
                    (total("verifier_waiting_sequences"), "waiting"),
                    (total("drafter_contexts"), "with a context at a drafter"),
                ],
            ),
            Panel(
                "Preemptions",
                [(rate("verifier_preemptions_total"), "per second")],
                "reqps",
                "Sequences that give their pages back and are computed again.",
            ),
        ],
        [
            Panel("Wait for a slot", quantiles("verifier_queue_seconds"), "s"),
            Panel("Prompt to first token", quantiles("verifier_prefill_seconds"), "s"),
            Panel(
                "Prompt tokens from the prefix cache",
                [
                    (
                        share(
                            rate("verifier_cached_prompt_tokens_total"),
                            rate("server_prompt_tokens_total"),
                        ),
                        "share",
                    )
                ],
                "percentunit",
            ),
        ],
        [
            Panel(
                "Steps per second",
                [(rate("verifier_steps_total"), "forward passes of the target")],
            ),
            Panel(
                "Tokens of a step",
                [
                    (
                        share(rate("verifier_step_tokens_total"), rate("verifier_steps_total")),
                        "run through the target",
                    ),
                    (
                        share(rate("verifier_output_tokens_total"), rate("verifier_steps_total")),
                        "gained",
                    ),
                ],
            ),
            Panel(
                "Memory of the processes",
                [(f"process_resident_memory_bytes{{{CHOSEN}}}", "{{instance}}")],
                "bytes",
            ),
        ],
        [
            Panel(
                "TPU duty cycle",
                [("avg by (pod) (duty_cycle)", "{{pod}}")],
                "percent",
                "From GKE's TPU device plugin, if it is scraped.",
            ),
            Panel(
                "TPU memory in use",
                [("sum by (pod) (memory_used) / sum by (pod) (memory_total)", "{{pod}}")],
                "percentunit",
                "From GKE's TPU device plugin, if it is scraped. Pages are allocated at the "
                "start: it says nothing about load.",
            ),
        ],
    ],
)

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
                [(series("verifier_rounding_classes"), "{{instance}}")],
                description="1: drafted answers are exactly the plain ones; more: they may "
                "differ where two tokens are nearly as likely; 0: not tested.",
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

DASHBOARDS = (SERVICE, SPECULATION, CAPACITY, FAULTS)
