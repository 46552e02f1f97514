"""The spectra room: solvers, the principal pair by order, regime, conditioning, heads."""
