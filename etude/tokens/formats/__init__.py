"""How models spell tool calls. One small file a format; `base` says what one is, `table` knows their names."""
