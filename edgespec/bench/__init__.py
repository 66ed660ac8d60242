"""Measures ways of decoding on the same models, prompts and limits, and reports what was measured.

It imports no model library: a run happens in a process of its own, through the runtime's port.
"""
