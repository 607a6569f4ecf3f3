"""What every format is read with: the window of input, the events, the turn, and the driver of calls."""
