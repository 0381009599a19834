"""The choices, one file a dimension. To add one, add a file here that registers it, and one that realises it."""
