"""The sentences that LM_DEMO.py shows a model on where no --input names others."""

from __future__ import annotations

# For runs: the built-in corpus is documentation of software.
OF_DOCUMENTATION = (
    "Return the number of [MASK] in the list.",
    "If the file does not [MASK], an error is raised.",
    "The value must be a [MASK] integer.",
    "This function returns a new [MASK] with the same [MASK].",
    "Open the file for reading and return its first line.",
    "The default value is used if no argument is given, and an error is raised if the name is not known.",
    "Two lists are equal if they have the same length and all of their items are equal.",
)
# For the model that comes with the checkout, which has read encyclopaedia and books.
OF_ANYTHING = (
    "Paris is the [MASK] of France.",
    "She opened the door and walked into the [MASK].",
    "The book was written in the nineteenth [MASK].",
    "He was born in [MASK] and died in [MASK].",
    "The [MASK] of the country is elected for four [MASK].",
    "The old man sat by the fire and told the children a story about the sea.",
    "The town was founded by settlers who came from the north and built a church near the river.",
)
