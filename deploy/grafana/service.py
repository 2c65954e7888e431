"""The dashboard service: requests, how fast they are served, and which are refused."""

from grafana.panels import Dashboard, Panel, quantiles, rate, total

SERVICE = Dashboard(
    "service",
    {
        "At a glance": [
            [
                Panel(
                    "Requests that fail",
                    {"{{namespace}}": "blockdraft:request_errors:ratio_rate1h"},
                    "percentunit",
                    "Of the last hour, for reasons of the service. The objective allows 0.5 %.",
                    threshold=0.005,
                    kind="stat",
                ),
                Panel(
                    "TTFT above 2.5 s",
                    {"{{namespace}}": "blockdraft:slow_first_tokens:ratio_rate1h"},
                    "percentunit",
                    "Of the last hour. The objective allows 5 %.",
                    threshold=0.05,
                    kind="stat",
                ),
                Panel(
                    "Error budget: how fast it is spent",
                    {
                        "1 h": "blockdraft:request_errors:ratio_rate1h / 0.005",
                        "6 h": "blockdraft:request_errors:ratio_rate6h / 0.005",
                        "3 d": "blockdraft:request_errors:ratio_rate3d / 0.005",
                    },
                    description="1 lasts exactly a month; 14.4 over an hour is paged.",
                    threshold=14.4,
                ),
            ],
            [
                Panel(
                    "Tokens per second",
                    {
                        "of completions": rate("server_output_tokens_total"),
                        "of prompts": rate("server_prompt_tokens_total"),
                    },
                ),
                Panel(
                    "Sequences ended",
                    {"{{reason}}": rate("verifier_finished_sequences_total", "reason")},
                    "reqps",
                ),
            ],
        ],
        "Requests": [
            [
                Panel(
                    "Requests by outcome",
                    {"{{outcome}}": rate("server_requests_total", "outcome")},
                    "reqps",
                    stacked=True,
                ),
                Panel(
                    "Requests under way",
                    {
                        "without a token yet": total("server_requests_waiting"),
                        "streaming": total("server_requests_running"),
                    },
                ),
            ],
        ],
        "Latency": [
            [
                Panel(
                    "Time to first token",
                    quantiles("server_time_to_first_token_seconds"),
                    "s",
                    threshold=2.5,
                ),
                Panel(
                    "Inter-token latency",
                    quantiles("server_inter_token_latency_seconds"),
                    "s",
                    "Between two messages, divided by the tokens of the later one: an accepted "
                    "draft comes as one message.",
                ),
                Panel("Request latency", quantiles("server_request_latency_seconds"), "s"),
            ],
        ],
        "Tenants": [
            [
                Panel(
                    "Requests by tenant",
                    {"{{tenant}}": rate("server_tenant_requests_total", "tenant")},
                    "reqps",
                    stacked=True,
                ),
                Panel(
                    "Tokens by tenant",
                    {"{{tenant}}": rate("server_tenant_tokens_total", "tenant")},
                    description="Of prompts and of completions.",
                    stacked=True,
                ),
                Panel(
                    "Refused by tenant",
                    {
                        "{{tenant}}": rate(
                            "server_tenant_requests_total",
                            "tenant",
                            ',outcome=~"tenant_limit|resource_exhausted"',
                        )
                    },
                    "reqps",
                    "Over the tenant's limits, or while the queue was full.",
                ),
            ],
        ],
        "Versions": [
            [
                Panel(
                    "Versions that are running",
                    {
                        "server {{version}}: {{model}}": total(
                            "server_build_info", "version, model"
                        ),
                        "verifier {{version}}: {{model}} {{target}}, {{dtype}}": total(
                            "verifier_build_info", "version, model, target, dtype"
                        ),
                        "drafter {{version}}: {{method}} {{fingerprint}} for {{target}}": total(
                            "drafter_build_info", "version, method, fingerprint, target"
                        ),
                    },
                    description="How many processes of each. Two of a kind are a roll-out.",
                )
            ],
        ],
    },
)
