"""The phases of an analysis: the workers' orders, their measurements, and the advice that follows."""
