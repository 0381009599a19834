"""The phases of an analysis: the workers' jobs, their measurements, and the advice from them."""
