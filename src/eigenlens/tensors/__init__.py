"""Weight files without a model: safetensors, torch .bin, GGUF; shards; where a model comes from."""
