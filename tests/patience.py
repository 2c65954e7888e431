"""How long tests wait for what must happen; the whole of it passes only when it does not."""

PATIENCE_SECONDS = 60.0
