"""How lfm2-nano was trained. It needs the extra `train`; `README.md` beside it has the commands."""
