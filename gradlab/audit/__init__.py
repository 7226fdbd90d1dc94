"""`python -m gradlab.audit`: mistakes with gradients in a training script, read from its text; nothing runs.

`source` reads files. `interpreter` follows a file's statements and calls, with what `knowledge` holds about PyTorch and
other packages, and leaves a `trace`: values, and a tree of the events that happen to gradients. The training loops in
the tree are replayed in scenarios, one for each combination of their conditions. `rules` look at scenarios, loops or
the text and yield findings; `fixes` change the text. Imports go one way: source < trace < knowledge < interpreter, and
source < trace < knowledge < rules; then file_audit < fixes < command.
"""
