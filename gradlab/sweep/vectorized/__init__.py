"""Jobs of a sweep trained together as lanes of one program."""
