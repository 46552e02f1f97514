"""From weights to circuits: which tensors make `F = W_O W_V` in each attention layer."""
