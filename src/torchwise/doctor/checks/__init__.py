"""The doctor's checks, one file per subject. Each judges the `Facts` and gives advice."""
