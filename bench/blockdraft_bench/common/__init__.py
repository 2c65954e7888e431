"""What measurements share: flags, data sets, resumable results, statistics, environment."""
