"""The doctor's checks, one file per subject. Each judges the `SystemInfo` and gives advice."""
