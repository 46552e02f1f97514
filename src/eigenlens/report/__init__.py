"""What people and scripts read: tables, strict JSON, CSV, parquet and vector files."""
