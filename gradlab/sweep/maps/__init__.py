"""Maps of a sweep over two fields."""
