"""Say why a model is slow, recompiles, breaks or gives wrong answers: where, at which cost, and how to fix it."""
