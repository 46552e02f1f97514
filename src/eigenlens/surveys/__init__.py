"""Surveys: many checkpoints, planned, computed on dask, kept in one parquet data set."""
