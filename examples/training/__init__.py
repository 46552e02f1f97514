"""Train the tiny models that ship inside eigenlens, one topic a file; see `train_samples`."""
