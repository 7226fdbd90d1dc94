"""Follows a program's text without running it: statements, expressions, calls and loops become a tree of events."""
