"""A running transformers model: load it, and verify a checkpoint's circuits against it."""
