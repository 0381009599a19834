"""The choices of a plan, one file for each subject."""
