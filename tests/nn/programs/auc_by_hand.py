import keras
import numpy as np

rng = np.random.default_rng(2)
truth = rng.integers(0, 2, 400).astype("float32")
scores = np.clip(0.3 * truth + 0.7 * rng.random(400), 0, 1).astype("float32")
auc = keras.metrics.AUC(num_thresholds=500)
auc.update_state(truth, scores)
order = scores[truth == 1][:, None] > scores[truth == 0][None]
assert abs(float(auc.result()) - order.mean()) < 0.01
