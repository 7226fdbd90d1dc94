"""Models. The option of `model=` is in this folder (its fields), its network in networks/."""
