"""The jobs of a sweep: axes, points, composed configurations."""
