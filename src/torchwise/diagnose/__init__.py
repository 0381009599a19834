"""Say why a model is slow, recompiles, breaks or gives wrong answers: where, at what cost, and how to fix it."""
