"""`bench acceptance`: how many tokens a verification gains, by dataset and temperature."""
