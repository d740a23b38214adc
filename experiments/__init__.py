"""Experiments: variants of one recipe, pretrained, scored, fine-tuned and compared; run from the
checkout.
"""
