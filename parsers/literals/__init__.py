"""Values, read and written: quoted literals, raw text typed by a schema, strings between tokens."""
