"""The JSON documents of eigenlens, key by key, for tools/write_schemas.py."""
