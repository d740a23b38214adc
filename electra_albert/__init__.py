"""Pretraining, fine-tuning and use of small text encoders."""

__version__ = "0.1.0"
