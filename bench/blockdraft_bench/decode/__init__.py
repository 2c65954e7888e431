"""`bench decode`: plain decoding and each draft method, one answer at a time, side by side."""
