"""The folder's own modules, `audited_snippets` and `loop_shapes`, are imported by the tests in its sub-folders."""
