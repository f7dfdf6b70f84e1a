import keras

lines = []
model = keras.Sequential(
    [keras.Input((4,)), keras.layers.Dense(3, name="first"), keras.layers.Dense(2)],
    name="small",
)
model.summary(print_fn=lambda line, **_: lines.append(line))
text = "\n".join(lines)
assert "first" in text
assert "23" in text
assert model.name == "small"
