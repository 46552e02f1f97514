"""The measure room: alignment, its significance and nulls, collapse and sinks; pure functions."""
