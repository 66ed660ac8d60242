"""Parts that runtimes share: calls of a model, weights in segments, tables read by row."""
