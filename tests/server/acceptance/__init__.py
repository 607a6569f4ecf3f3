"""The clients that people have, unchanged, against a server on loopback."""
