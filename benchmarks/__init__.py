"""Speed of the toolkit measured beside stock transformers; run from the checkout, not part of the package."""
