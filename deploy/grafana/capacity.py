"""The dashboard capacity: how full the machines are."""

from grafana.panels import Dashboard, Panel
from grafana.queries import CHOSEN, quantiles, rate, share, total

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
