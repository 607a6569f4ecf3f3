"""Pure conversions between the message model and the formats other software speaks."""
