"""The MLX host, on Apple silicon and wherever else MLX runs. `host.MlxHost` loads a folder of weights."""
