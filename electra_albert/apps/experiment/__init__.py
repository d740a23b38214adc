"""Experiments: a plan of runs that differ in what is asked, made and told side by side."""
