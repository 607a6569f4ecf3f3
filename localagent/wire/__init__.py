"""Pure conversions between the message model and the formats of other software."""
