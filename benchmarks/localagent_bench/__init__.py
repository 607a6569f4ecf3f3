"""`localagent bench`: what parsers, models and servers do right, and how fast.

A distribution of its own above localagent, which finds its commands by an entry point and never imports it.

results     what all of them find: rows of tables, written as JSON lines with the machine and versions
statistics  intervals and tests for what was found
report      one HTML file made of such lines
bfcl        where the tasks of BFCL are, and how they are read
charts      what is drawn, in Vega-Lite
cli/        the commands
parsers/    parsers of tool calls on recorded outputs, round trips and injected faults
model/      a model on this machine: speed, memory, tool calls
server/     any OpenAI-compatible server: wire rules and load
harness/    for the scripts: servers in child processes, bare engines, sides that are read by hand
fleet/      for fleet.py: a simulation of many replicas, and real ones to check it
training/   how lfm2-nano was trained
"""
