"""What every serving process shares: errors, lifecycle, logging, metrics endpoint."""
