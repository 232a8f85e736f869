"""The switch that stops probing, of the whole fleet or of one replica."""
