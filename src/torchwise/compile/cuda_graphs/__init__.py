"""Capture CUDA graphs, one file for each unit of capture.

A plan captures whole calls (`call`), or segments between the reads of GPU data in Python (`branches`). Their choices in
`plan/choices/capture.py` name the classes. Loops and training steps (`loop`, `step`) are captured when a program
requests it.
"""
