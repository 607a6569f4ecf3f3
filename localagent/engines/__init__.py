"""The installed engines: how llama.cpp is built, and whether an engine computes right on this processor.

    build       compiles llama.cpp for this machine, keeps the wheel, mends a bad build
    check       runs an engine in a child process and remembers that it works
    trial       what the child does: lfm2-nano as it is and quantized, its tokens compared
    children    names the model and the engine when an engine ends the process it runs in
    processor   what this processor is called and which instructions it has

A badly compiled engine kills the process that runs it, so whatever may be bad is tried in a child process.
"""
