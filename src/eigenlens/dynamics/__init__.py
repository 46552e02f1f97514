"""Layer maps iterated far beyond a model's depth: where tokens end, and where they should."""
