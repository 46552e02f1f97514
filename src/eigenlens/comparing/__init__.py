"""Two checkpoints of one architecture side by side: what of F moved, and by how much."""
