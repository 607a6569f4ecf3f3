"""Other programs, told to use this machine's server: what goes into their configuration, and out of it again.

`clients` has the programs and what each wants to be told, `connection` writes a file and undoes it. The files
belong to their users: `jsonc`, `toml` and `yaml` change a value in a text and leave every other byte alone.
"""
