"""`localagent bench parsers`: what parsers of tool calls read right, refuse and get wrong, and what that
costs.

corpora       recorded outputs with the readings that are right, and the tasks of BFCL
canitoolcall  the outputs of that package, judged by its own code
outputs       calls as models write them, cut into pieces, and with faults in them
faults        further faults, each with its rule for what is then the same call
judging       how a reading compares with what is right
children      a parser in a child process, which may hang, die or talk nonsense
adapters/     what runs in those: ours, and those of other projects
recorded, trips, injected, speed    the measures, as tables
"""
