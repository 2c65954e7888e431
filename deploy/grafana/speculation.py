"""The dashboard speculation: what drafts gain and what they cost."""

from grafana.panels import Dashboard, Panel, mean, rate, share

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
                Panel(
                    "Steps of a canvas",
                    {
                        "mean": f"{rate('verifier_denoising_steps_total')} / "
                        f"({rate('verifier_canvases_total')} > 0)"
                    },
                    description="Of targets that denoise, and draft nothing.",
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
    },
)
