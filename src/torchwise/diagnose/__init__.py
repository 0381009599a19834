"""Say why a model is slow, recompiles, breaks or answers differently: where, at which price, and what mends it."""
