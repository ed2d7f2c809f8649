"""What to do about a plan that fails: proposals, the repair loop, candidates and what each costs."""
