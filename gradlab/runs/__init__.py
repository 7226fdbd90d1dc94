"""What a run leaves in its folder: written here, and read here."""
