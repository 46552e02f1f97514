"""Real tokens through a live model, and whether they tilt towards each layer's leader."""
