"""The dashboard learning: versions of a drafter that learns, and its trainer."""

from grafana.panels import Dashboard, Panel, rate, series, share, total

LEARNING = Dashboard(
    "learning",
    {
        "Versions in service": [
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
        ],
        "Trainer": [
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
)
