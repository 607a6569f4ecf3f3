"""What every format is read with: the window of input, the events, the turn, and the driver of calls.

`dialect.py` imports `source`, `emitter`, `spans` and `tools`; `stream`, `turn` and `driver` import it.
"""
