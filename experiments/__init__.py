"""Plans of runs that differ in one thing, pretrained, fine-tuned and scored side by side; run from the checkout."""
