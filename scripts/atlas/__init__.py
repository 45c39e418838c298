"""The atlas: every softmax on every task that is small enough for two CPU cores."""
