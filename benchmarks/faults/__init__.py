"""Faults tried from outside on the command line: `python -m benchmarks.faults --trials 1500 --jobs
2`.
"""
