"""How lfm2-nano was trained: for a checkout, not in the wheel. `README.md` beside it has the commands."""
