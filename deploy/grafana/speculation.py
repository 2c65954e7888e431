"""The dashboard speculation: what drafts gain and what they cost."""

from grafana.panels import Dashboard, Panel
from grafana.queries import mean, rate, series, share, total

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
