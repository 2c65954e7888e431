"""The dashboard speculation: what drafts gain and what they cost."""

from grafana.panels import Dashboard, Panel, mean, rate, series, share, total

SPECULATION = Dashboard(
    "speculation",
    {
        "Gain": [
            [
                Panel(
                    "Estimated speed-up",
                    {"{{namespace}}": "blockdraft:estimated_speedup:rate5m"},
                    "short",
                    "Over plain decoding, if a plain step took as long as verifying takes: the "
                    "most that drafting can gain.",
                    threshold=1,
                    below=True,
                    kind="stat",
                ),
                Panel(
                    "Step time saved",
                    {"{{namespace}}": "blockdraft:saved_step_seconds:rate5m"},
                    "s",
                    "In each second, on the same assumption; times the chips of the verifier these "
                    "are chip-seconds.",
                    kind="stat",
                ),
                Panel(
                    "τ, tokens of a verification",
                    {
                        "all": "blockdraft:acceptance_length:rate5m",
                        "{{source}}": "blockdraft:acceptance_length_by_source:rate5m",
                    },
                    description="Over all verifications, and over those of each source's drafts. "
                    "Plain decoding is 1.",
                    threshold=1,
                    below=True,
                ),
            ],
            [
                Panel(
                    "Accepted up to a position",
                    {"{{source}} {{position}}": "blockdraft:acceptance_by_position:rate5m"},
                    "percentunit",
                    "Of all drafts; with the adaptive policy not every one is long enough for "
                    "the later positions.",
                ),
                Panel(
                    "Drafted tokens accepted",
                    {
                        "{{source}}": share(
                            rate("verifier_accepted_tokens_total", "source"),
                            rate("verifier_drafted_tokens_total", "source"),
                        )
                    },
                    "percentunit",
                ),
                Panel(
                    "Draft length chosen",
                    {
                        "{{source}}": share(
                            rate("verifier_drafted_tokens_total", "source"),
                            rate("verifier_drafts_total", "source"),
                        )
                    },
                    description="Tokens of a draft that is verified.",
                ),
                Panel(
                    "Drafted tokens discarded",
                    {"{{source}}": rate("verifier_discarded_draft_tokens_total", "source")},
                    description="Not verified, because a constraint forbids them.",
                ),
            ],
        ],
        "Verification": [
            [
                Panel(
                    "Where step time goes",
                    {"{{part}}": rate("verifier_step_seconds_sum", "part")},
                    "s",
                    "Seconds of a second: the target, waiting while the drafter computes, waiting "
                    "beyond that, and the host.",
                    stacked=True,
                ),
                Panel(
                    "Tokens by source",
                    {
                        "{{source}}": rate("verifier_accepted_tokens_total", "source"),
                        "the target's own": rate("verifier_verifications_total"),
                    },
                    stacked=True,
                ),
                Panel(
                    "Verifications with a draft",
                    {
                        "{{source}}": (
                            f"{rate('verifier_drafts_total', 'source')} / on () group_left () "
                            f"({rate('verifier_verifications_total')} > 0)"
                        )
                    },
                    "percentunit",
                ),
            ],
        ],
        "Drafter": [
            [
                Panel(
                    "Step of the drafter",
                    {"{{phase}}": mean("drafter_step_seconds", "phase")},
                    "s",
                    "The forward pass, and from arrival to departure.",
                ),
                Panel(
                    "Work of the drafter",
                    {
                        "requests": rate("drafter_steps_total"),
                        "drafts": rate("drafter_drafts_total"),
                        "tokens": rate("drafter_drafted_tokens_total"),
                        "positions appended": rate("drafter_appended_positions_total"),
                    },
                ),
                Panel("Sequences of a draft request", {"mean": mean("drafter_step_sequences")}),
            ],
        ],
        "Learning": [
            [
                Panel(
                    "τ by version",
                    {
                        "{{version}} {{context}}": share(
                            rate("drafter_version_gained_tokens_total", "version, context"),
                            rate("drafter_version_verifications_total", "version, context"),
                        )
                    },
                    description="Of the drafter's own drafts, by whether the version filled the "
                    "whole draft KV cache itself or older weights a part.",
                    threshold=1,
                    below=True,
                ),
                Panel(
                    "Version that drafts",
                    {
                        "{{instance}}": series("drafter_version"),
                        "{{kind}}, per second": rate("drafter_version_changes_total", "kind"),
                    },
                    description="It falls when fewer tokens are accepted of it than of the version "
                    "before.",
                ),
                Panel(
                    "Sequences recorded",
                    {"{{outcome}}": rate("drafter_training_samples_total", "outcome")},
                    "reqps",
                    "Written, kept out by caller or tenant, or dropped.",
                    stacked=True,
                ),
                Panel(
                    "Training samples on disk",
                    {"training samples": total("drafter_training_sample_bytes")},
                    "bytes",
                ),
            ],
            [
                Panel(
                    "Training steps",
                    {
                        "{{instance}}": rate("trainer_steps_total", "instance"),
                        "{{instance}}, discarded": rate(
                            "trainer_thrown_away_steps_total", "instance"
                        ),
                    },
                    "reqps",
                    "The loss or gradients of discarded steps were not finite.",
                ),
                Panel(
                    "Share of the time that training waits",
                    {"{{instance}}": rate("trainer_waited_seconds_total", "instance")},
                    "percentunit",
                    "While sequences are decoded; at 100 % the service is never idle, and nothing "
                    "is learned.",
                ),
                Panel(
                    "Time since the last step",
                    {
                        "{{instance}}": (
                            f"time() - ({series('trainer_last_step_timestamp_seconds')} > 0)"
                        )
                    },
                    "s",
                    "It also grows when every sample was learned from often enough.",
                ),
                Panel(
                    "Training loss of the last step",
                    {"{{instance}}": series("trainer_loss")},
                ),
            ],
            [
                Panel(
                    "Τ on held-out samples",
                    {"{{drafter}}": series("trainer_held_out_tau")},
                    description="At the last evaluation: of the candidate, and of the version that "
                    "served then. 0 before the first.",
                    threshold=1,
                    below=True,
                ),
                Panel(
                    "Training steps of the candidate",
                    {"{{instance}}": series("trainer_candidate_steps")},
                    description="It restarts when a version is promoted by hand, and when a "
                    "candidate is abandoned.",
                ),
                Panel(
                    "Candidates",
                    {
                        "evaluated": rate("trainer_evaluations_total"),
                        "{{outcome}}": rate("trainer_candidates_total", "outcome"),
                    },
                    "reqps",
                ),
                Panel(
                    "Training samples refused",
                    {"{{instance}}": series("trainer_refused_samples")},
                    description="Damaged, or of another target, other layers or another "
                    "projection.",
                ),
            ],
        ],
    },
    collapsed=["Learning"],
)
