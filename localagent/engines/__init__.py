"""The installed engines: how llama.cpp is built, and whether an engine computes right on this processor.

    build       compiles llama.cpp for this machine, keeps the wheel, replaces a bad build
    check       tries an engine in a child process and remembers that it works
    trial       the child's work: runs lfm2-nano, plain and quantized, and compares its tokens
    children    runs a program and says which model and engine were loaded if an engine kills it
    processor   the processor's name and instructions

A badly compiled engine kills the process that runs it, so an untested engine runs in a child process first.
"""
