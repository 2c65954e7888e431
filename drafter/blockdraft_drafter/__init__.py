"""Draft models and each sequence's context."""
