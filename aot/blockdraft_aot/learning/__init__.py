"""Learning beside drafting on the same chips: its programs, what they take and cost."""
