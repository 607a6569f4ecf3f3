"""A third engine, as hosts/README.md says to add one: a folder and a row. It continues a text that it knows."""
