"""Every architecture and every config at hand, judged by tpplan and by an oracle that knows nothing of it.

For developers: `python -m tests.sweep --help`. What is compared, and what a disagreement means, is in `agreement.py`.
"""
