"""The laboratory: softmax temperature rules, attention, models, training and measurement."""
