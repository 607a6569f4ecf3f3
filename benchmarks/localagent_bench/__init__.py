"""`localagent bench`: what parsers, models and servers do right, and how fast.

results     what all of them find: rows of tables, written as JSON lines with the machine and versions
statistics  intervals and tests for what was found
report      one HTML file made of such lines
charts/     its charts, as SVG
parsers/    parsers of tool calls on recorded outputs, round trips and injected faults
model/      a model on this machine: speed, memory, tool calls
server/     any OpenAI-compatible server: wire rules and load
"""
