"""Grammars for the payload of call blocks, each as straight-line reading code over a `Source`."""
