"""Makes other programs use this machine's server: writes it into their configuration, and takes it out again.

`clients` has the programs and the settings of each, `connection` writes a file and undoes it. The files
belong to their users: `jsonc`, `toml` and `yaml` change a value in a text and leave every other byte alone.
"""
