"""The stages behind a verdict: each runs the model in its own way and says what it saw; judge.py runs them in order."""
