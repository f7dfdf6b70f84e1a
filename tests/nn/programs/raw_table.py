import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
ages = rng.uniform(18, 80, (256, 1)).astype("float32")
incomes = rng.lognormal(10, 0.5, (256, 1)).astype("float32")
cities = rng.integers(0, 5, (256, 1))
y = ((ages > 45) & (cities != 3)).astype("float32")

age = keras.Input((1,), name="age")
income = keras.Input((1,), name="income")
city = keras.Input((1,), name="city", dtype="int32")
normal = keras.layers.Normalization()
normal.adapt(incomes)
bins = keras.layers.Discretization([30.0, 45.0, 60.0], output_mode="one_hot")
hot = keras.layers.CategoryEncoding(num_tokens=5, output_mode="one_hot")
h = keras.layers.Concatenate()([bins(age), normal(income), hot(city)])
h = keras.layers.Dense(16, activation="relu")(h)
model = keras.Model([age, income, city], keras.layers.Dense(1, "sigmoid")(h))
model.compile(keras.optimizers.Adam(0.03), "binary_crossentropy", metrics=["accuracy"])
data = {"age": ages, "income": incomes, "city": cities}
model.fit(data, y, epochs=15, batch_size=32, verbose=0)
assert model.evaluate(data, y, verbose=0)[1] > 0.97
