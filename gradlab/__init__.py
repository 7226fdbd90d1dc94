"""gradlab: a laboratory for gradient failures.

Every module is plain PyTorch that can be imported alone: `gradlab.step` for one update, `gradlab.clip`,
`gradlab.precision` and the others for its parts. The command is `python -m gradlab`.
"""

__version__ = "0.1.0"
