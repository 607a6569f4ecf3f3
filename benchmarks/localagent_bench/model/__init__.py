"""`localagent bench model`: a model on this machine, alone or beside others.

plan            what is measured, in which order
sides           the models, each with its settings, loaded side by side
speed           tokens per second against the depth of the context, memory, watts
conversation    the first token of every turn, with the prefix reused and without
calling         tool calling, task by task; sides are paired on the same tasks
tasks, bfcl     the tasks and who judges them: lfm2-nano's own, and BFCL's
energy          what the processor says of its energy
"""
