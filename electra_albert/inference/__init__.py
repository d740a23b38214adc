"""A trained model in a program."""

from electra_albert.inference.model import load_model as load_model
