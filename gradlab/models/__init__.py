"""What is trained. A model's option (its fields, `model=`) is beside this file, its network in networks/."""
