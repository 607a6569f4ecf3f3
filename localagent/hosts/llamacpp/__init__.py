"""The llama.cpp host: everything of it, from the header of a GGUF file to its row in the table of engines."""
