"""The phases of an analysis: what the workers are told, what they look at, and what follows from it."""
