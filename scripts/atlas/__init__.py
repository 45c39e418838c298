"""The atlas: every softmax on every task that two cores can settle."""
