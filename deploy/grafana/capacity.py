"""The dashboard capacity: how full the machines are."""

from grafana.panels import CHOSEN, Dashboard, Panel, quantiles, rate, series, share, total

CAPACITY = Dashboard(
    "capacity",
    {
        "Cache and sequences": [
            [
                Panel(
                    "Pages of the KV cache in use",
                    {
                        "by live sequences": share(
                            total("verifier_pages_used"), total("verifier_pages")
                        ),
                        "of the fullest": f"max({series('verifier_kv_cache_usage_ratio')})",
                    },
                    "percentunit",
                    threshold=0.95,
                ),
                Panel(
                    "Sequences",
                    {
                        "decoded": total("verifier_running_sequences"),
                        "waiting": total("verifier_waiting_sequences"),
                        "slots": total("verifier_slots"),
                        "with a draft KV cache": total("drafter_kv_cache_sequences"),
                    },
                ),
                Panel(
                    "Saturation",
                    {"{{instance}}": series("verifier_saturation_ratio")},
                    "percentunit",
                    "Sequences that run and wait, of the slots. Autoscalers add pods above 80 %.",
                    threshold=0.8,
                ),
                Panel(
                    "Preemptions",
                    {"per second": rate("verifier_preemptions_total")},
                    "reqps",
                    "Sequences that lose their pages and are computed again.",
                ),
            ],
        ],
        "Prompts": [
            [
                Panel("Wait for a slot", quantiles("verifier_queue_seconds"), "s"),
                Panel("Prompt to first token", quantiles("verifier_prefill_seconds"), "s"),
                Panel(
                    "Prompt tokens from the prefix cache",
                    {
                        "share": share(
                            rate("verifier_cached_prompt_tokens_total"),
                            rate("server_prompt_tokens_total"),
                        )
                    },
                    "percentunit",
                ),
            ],
        ],
        "Steps and memory": [
            [
                Panel(
                    "Steps per second",
                    {"forward passes of the target": rate("verifier_steps_total")},
                ),
                Panel(
                    "Tokens of a step",
                    {
                        "run through the target": share(
                            rate("verifier_step_tokens_total"), rate("verifier_steps_total")
                        ),
                        "gained": share(
                            rate("verifier_output_tokens_total"), rate("verifier_steps_total")
                        ),
                    },
                ),
                Panel(
                    "Memory of the processes",
                    {"{{instance}}": f"process_resident_memory_bytes{{{CHOSEN}}}"},
                    "bytes",
                ),
            ],
        ],
        "TPU": [
            [
                Panel(
                    "TPU duty cycle",
                    {"{{pod}}": "avg by (pod) (duty_cycle)"},
                    "percent",
                    "From GKE's TPU device plugin, if it is scraped.",
                ),
                Panel(
                    "TPU memory in use",
                    {"{{pod}}": "sum by (pod) (memory_used) / sum by (pod) (memory_total)"},
                    "percentunit",
                    "From GKE's TPU device plugin, if it is scraped. Pages are allocated at the "
                    "start: it says nothing about load.",
                ),
            ],
        ],
    },
)
