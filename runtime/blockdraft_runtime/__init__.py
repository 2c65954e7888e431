"""What every serving process shares: errors, lifecycle, back-off, logging, metrics endpoint."""
