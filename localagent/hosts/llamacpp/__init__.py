"""The llama.cpp host: everything of it, from the header of a GGUF file to its row in the table of engines.

The files, and what each is for:

    backend                        the row: what is known before anything is imported
    host                           from a GGUF file to a host: header, memory and options are checked
    engine, lanes                  the loaded model with its one context, and the sequences of that
    vocabulary, sampling           text to ids and back; how a token is drawn
    prefill                        how many tokens are computed at once, and with which attention
    cores, pace                    how many threads compute, beside other contexts and other programs
    library                        the one import of llama_cpp, what it logs, and quantizing
    compiling                      how llama.cpp has to be compiled on this machine
    gguf, header, hyperparameters  the header of a file: read, held, and checked
    memory                         what a model is going to take, from its header
"""
