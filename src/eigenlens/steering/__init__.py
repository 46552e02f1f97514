"""A chosen direction put on top of a layer's spectrum: rank-one edits of an output projection."""
