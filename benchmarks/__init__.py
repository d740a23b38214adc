"""Benchmarks: the toolkit's speed compared with stock transformers; run from the checkout, not part
of the package.
"""
