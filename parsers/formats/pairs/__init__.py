"""Calls as a name and pairs of tags: GLM, Hunyuan, LongCat, K2 Horizon, Solar 2."""
