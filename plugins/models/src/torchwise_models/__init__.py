"""Models for Torchwise: families of its zoo (`zoo:ivhl.mera_layer`), and models of other libraries (`hf:gpt2`).

Entry points bring them into Torchwise. The code uses its public names alone, as any plug-in does.
"""
