"""Model hosts, which load weights and generate tokens: `llamacpp`, `mlx` and `replay`, one interface."""
