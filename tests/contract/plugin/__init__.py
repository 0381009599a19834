"""A package of somebody else's, with a backend and a rewrite. Each is declared and written in one file."""
