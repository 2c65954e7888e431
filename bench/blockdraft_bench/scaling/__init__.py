"""`bench scaling`: speed-up predicted from measured acceptance and costs."""
