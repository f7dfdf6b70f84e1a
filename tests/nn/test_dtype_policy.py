"""Layers in mixed bfloat16: who computes in what, and that nothing else changes."""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import numpy as np
import pytest
from bfloat16 import round_to_bfloat16, widen
from internals import leave_out_rewrite

import memcfg as mc
from memcfg.errors import KernelError

nn = mc.nn
MIXED, BF = "mixed_bfloat16", "bfloat16"


def small(**options):
    return nn.Sequential(
        [
            nn.Input((8, 8, 3)),
            nn.Conv2D(8, 3, padding="same"),
            nn.BatchNormalization(),
            nn.ReLU(),
            nn.MaxPool2D(),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Dense(16, activation="gelu"),
            nn.LayerNormalization(),
            nn.Dense(5, activation="softmax"),
        ],
        **options,
    )


def compiled(model, **options):
    model.compile(nn.Adam(0.01), "sparse_categorical_crossentropy", **options)
    return model


@pytest.fixture
def data():
    random = np.random.default_rng(0)
    x = random.normal(size=(24, 8, 8, 3)).astype(np.float32)
    return x, random.integers(0, 5, 24)


def dtypes(model, *types):
    graph = model.graph()
    return {
        op.type: (
            [graph.tensors[i].dtype for i in op.inputs],
            [graph.tensors[i].dtype for i in op.outputs],
        )
        for op in graph.ops
        if op.type in types
    }


class TestPolicy:
    def test_names_and_what_they_mean(self):
        policy = nn.DTypePolicy(MIXED)
        assert (policy.compute_dtype, policy.variable_dtype) == ("bfloat16", "float32")
        assert policy == mc.config.DTypePolicy.from_config(policy.get_config())
        assert policy != nn.DTypePolicy("float32")
        assert {policy: 1}[copy.deepcopy(policy)] == 1
        assert repr(policy) == '<DTypePolicy "mixed_bfloat16">'
        with pytest.raises(AttributeError, match="cannot be changed"):
            policy.name = "float32"

    @pytest.mark.parametrize("name", ["bfloat16", "mixed_float16", "int8", 16, None])
    def test_others_are_refused(self, name):
        with pytest.raises(ValueError, match="a dtype policy is 'float32' or"):
            nn.DTypePolicy(name)
        with pytest.raises(ValueError, match="a dtype policy is"):
            mc.config.set_dtype_policy(name)
        assert mc.config.dtype_policy().name == "float32"

    def test_the_global_one_is_that_of_layers_to_come(self):
        before = nn.Dense(3)
        mc.config.set_dtype_policy(MIXED)
        assert mc.config.dtype_policy() == nn.DTypePolicy(MIXED)
        assert nn.Dense(3).compute_dtype == "bfloat16"
        assert nn.Dense(3, dtype="float32").compute_dtype == "float32"
        assert before.compute_dtype == "float32"
        mc.config.reset()
        assert nn.Dense(3).dtype_policy.name == "float32"

    def test_that_of_a_model_is_of_layers_that_say_none(self):
        own = nn.Dense(5, dtype="float32")
        model = nn.Sequential([nn.Input((4,)), nn.Dense(3), own], dtype=MIXED)
        assert [e.compute_dtype for e in model.layers] == ["bfloat16", "float32"]
        x = nn.Input((4,))
        model = nn.Model(x, nn.Dense(2)(x + 1), dtype=nn.DTypePolicy(MIXED))
        assert model.layers[-1].compute_dtype == "bfloat16"
        assert model.dtype_policy.name == MIXED

    def test_that_of_a_model_which_says_none_is_of_its_layers(self):
        mc.config.set_dtype_policy(MIXED)
        model = small()
        mc.config.reset()
        assert model.dtype_policy.name == MIXED
        model = small()
        mc.config.set_dtype_policy(MIXED)
        assert model.dtype_policy.name == "float32"

    def test_it_is_set_before_compile(self, data):
        model = small()
        model.dtype_policy = MIXED
        assert {each.compute_dtype for each in model.layers} == {"bfloat16"}
        compiled(model)
        with pytest.raises(RuntimeError, match="before compile"):
            model.dtype_policy = "float32"
        with pytest.raises(RuntimeError, match="before compile"):
            model.layers[0].dtype_policy = "float32"
        assert model.layers[0].dtype_policy.name == MIXED
        model.fit(*data, verbose=0)
        model.close()

    @pytest.mark.parametrize("runs", [False, True])
    def test_it_is_set_before_a_model_runs(self, data, runs):
        model, shared = small(), nn.Dense(5)
        wide = nn.Input((16,))
        other = nn.Model(wide, shared(wide))
        if runs:
            other.predict(np.zeros((2, 16), np.float32), verbose=0)
        else:
            compiled(other)
        narrow = nn.Input((16,))
        nn.Model(narrow, shared(narrow))  # has the values now, and no program
        with pytest.raises(RuntimeError, match="has run"):
            shared.dtype_policy = MIXED
        model.predict(data[0], verbose=0)
        with pytest.raises(RuntimeError, match="has run"):
            model.dtype_policy = MIXED
        assert copy.deepcopy(shared).dtype_policy.name == "float32"
        copied = copy.deepcopy(model)
        copied.dtype_policy = MIXED  # no program of its own yet
        assert not np.array_equal(
            copied.predict(data[0], verbose=0), model.predict(data[0], verbose=0)
        )
        for each in (model, other, copied):
            each.close()

    def test_where_one_layer_cannot_no_layer_changes(self):
        first, last = nn.Dense(16), nn.Dense(5)
        x = nn.Input((16,))
        both = nn.Model(x, last(first(x)))
        other = compiled(nn.Model(x, last(x)))  # has the values of the last
        with pytest.raises(RuntimeError, match="compiled"):
            both.dtype_policy = MIXED
        with pytest.raises(RuntimeError, match="compiled"):
            nn.Model(x, last(first(x)), dtype=MIXED)
        assert first.compute_dtype == last.compute_dtype == "float32"
        stack = nn.Sequential([nn.Input((16,)), nn.Dense(16)], dtype=MIXED)
        with pytest.raises(RuntimeError, match="compiled"):
            stack.add(last)
        assert len(stack.layers) == 1
        assert stack.output_shape == (None, 16)
        wrong = nn.Conv2D(3, 3)
        with pytest.raises(ValueError, match="Conv2D"):
            stack.add(wrong)
        assert wrong.compute_dtype == "float32"
        other.close()

    @pytest.mark.parametrize("policy", [{}, {"config": 3}, {"config": {}}, [1], None])
    def test_what_is_no_name_is_refused(self, policy):
        with pytest.raises(ValueError, match="a dtype policy is"):
            mc.config.set_dtype_policy(policy)
        assert mc.config.dtype_policy().name == "float32"

    def test_inner_layers_follow_where_it_is_set(self):
        layer = nn.TimeDistributed(nn.Dense(3))
        layer.dtype_policy = MIXED
        assert layer.layer.compute_dtype == "bfloat16"

    def test_configs_tell_it(self):
        layer = nn.Dense(3, dtype=MIXED)
        assert layer.get_config()["dtype"]["config"] == {"name": MIXED}
        assert nn.Dense.from_config(layer.get_config()).compute_dtype == "bfloat16"
        written = {"config": {"name": MIXED}, "class_name": "DTypePolicy"}  # Keras's
        assert nn.Dense(3, dtype=written).compute_dtype == "bfloat16"
        config = nn.Dense(3).get_config()
        assert config["dtype"]["config"] == {"name": "float32"}
        mixed = nn.Sequential([nn.Dense.from_config(config)], dtype=MIXED)
        assert mixed.layers[0].compute_dtype == "bfloat16"  # it was not given


class TestGraph:
    def test_products_are_bfloat16_and_statistics_float32(self):
        model = compiled(small(dtype=MIXED))
        bf, f32 = "bfloat16", "float32"
        found = dtypes(
            model,
            *("conv2d_bias", "conv2d_gradient_kernel"),
            *("batch_moments", "batch_normalization_relu"),
            *("layer_normalization", "dense_gradient_kernel", "max_pool2d"),
            *("softmax_cross_entropy", "adam"),
        )
        assert found["conv2d_bias"] == ([bf, bf, f32], [bf])
        assert found["conv2d_gradient_kernel"] == ([bf, bf], [f32])
        assert found["dense_gradient_kernel"] == ([bf, bf], [f32])
        assert found["batch_moments"] == ([bf], [f32, f32])
        assert found["batch_normalization_relu"] == ([bf] + [f32] * 4, [bf])
        assert found["layer_normalization"] == ([bf, f32, f32], [bf, f32, f32])
        assert found["max_pool2d"] == ([bf], [bf, "uint8"])
        assert set(found["softmax_cross_entropy"][0]) == {f32, "int32"}
        assert f32 in found["adam"][0]
        assert bf not in found["adam"][0] + found["adam"][1]
        model.close()

    def test_the_mask_of_a_rounded_result_is_rounded(self):
        found = {}
        for policy in ("float32", MIXED):
            x = nn.Input((8, 8, 3))
            h = nn.BatchNormalization()(nn.Conv2D(4, 3)(x))
            y = nn.Dense(2)(nn.Flatten()(nn.Conv2D(4, 3)(nn.ReLU(max_value=6)(h))))
            model = nn.Model(x, y, dtype=policy)
            model.compile("sgd", "mse")
            kind = "batch_normalization_relu6_gradient"
            (op,) = [op for op in model.graph().ops if op.type == kind]
            found[policy] = op.attributes.get("rounds", False)
            model.close()
        assert found == {"float32": False, MIXED: True}

    def test_a_weight_is_cast_once_a_phase(self):
        shared, x = nn.Dense(4, use_bias=False), nn.Input((4,))
        model = nn.Model(x, shared(shared(x)), dtype=MIXED)
        model.compile("sgd", "mse")
        ops = [op for op in model.graph().ops if op.type == "cast"]
        phases = [op.phase for op in ops if "kernel/bfloat16" in op.name]
        assert phases == ["forward", "backward"]  # no copy waits in between
        model.close()

    def test_copies_of_weights_are_there_one_at_a_time(self):
        def peak(policy):
            layers = [nn.Dense(512, use_bias=False) for _ in range(3)]
            model = nn.Sequential([nn.Input((512,)), *layers], dtype=policy)
            model.compile("sgd", "mse", memory="share")
            found = model.plan(1).peak_bytes
            model.close()
            return found

        assert peak(MIXED) < peak("float32") + 512 * 512 * 2  # one copy at a time

    def test_a_layer_of_float32_reads_float32(self):
        last = nn.Dense(5, use_bias=False, dtype="float32")
        first = nn.Dense(3, use_bias=False)
        model = nn.Sequential([nn.Input((4,)), first, last], dtype=MIXED)
        model.compile("sgd", "mse")
        graph = model.graph()
        dense = [op for op in graph.ops if op.type == "dense"]
        kinds = [{graph.tensors[i].dtype for i in op.inputs} for op in dense]
        assert kinds == [{"bfloat16"}, {"float32"}]
        model.close()

    def test_without_it_there_are_no_casts(self):
        model = compiled(small())
        assert "cast" not in {op.type for op in model.graph().ops}
        model.close()


class TestSymbolicTensors:
    def test_they_say_what_their_layers_compute_in(self):
        tokens = nn.Input((6,), dtype="int32")
        h = nn.Embedding(300, 8)(tokens)
        first = nn.Dense(4)
        own = nn.Dense(3, dtype="float32")
        y = own(first(nn.GlobalAveragePooling1D()(h) + 1))
        model = nn.Model(tokens, y)
        assert model.output.dtype == first.output.dtype == h.dtype == "float32"
        model.dtype_policy = MIXED
        own.dtype_policy = "float32"
        assert (tokens.dtype, h.dtype, first.input.dtype) == ("int32", *[BF] * 2)
        assert (first.output.dtype, own.output.dtype) == (BF, "float32")
        assert first.weights[0].dtype == "float32"
        assert nn.ops.cast(first.output, "int32").dtype == "int32"
        outer = nn.Model(tokens, nn.ReLU(dtype=MIXED)(model(tokens)))
        assert outer.layers[-1].input.dtype == "float32"
        assert outer.output.dtype == BF
        assert copy.deepcopy(outer).output.dtype == BF
        assert outer.predict(np.zeros((2, 6)), verbose=0).dtype == np.float32
        outer.close()

    def test_a_result_of_a_model_inside_says_what_its_layer_does(self):
        x = nn.Input((4,))
        inner = nn.Sequential([x, nn.Dense(3)], dtype=MIXED)
        assert inner(nn.Input((4,))).dtype == BF

    def test_a_call_casts_to_what_another_tensor_is(self, data):
        seen = []

        class Scaled(nn.Layer):
            def build(self, input_shape):
                self.scale = self.add_weight((input_shape[-1],), "ones", name="scale")
                self.inner = nn.Dense(5)

            def call(self, x):
                y = self.inner(x)
                which = nn.ops.cast(
                    nn.ops.cast(nn.ops.max(y, axis=-1), "int32"), y.dtype
                )
                seen.extend([self.scale.dtype, y.dtype, which.dtype])
                return y + nn.ops.expand_dims(which, -1)

        mc.config.set_dtype_policy(MIXED)
        model = nn.Sequential([nn.Input((8, 8, 3)), nn.Flatten(), Scaled()])
        assert seen == ["float32", BF, BF]
        assert model.output.dtype == BF
        assert model.predict(data[0], verbose=0).dtype == np.float32
        model.close()

    def test_casts_round(self):
        x = nn.Input((3,))
        rounded = nn.ops.cast(x, BF)
        model = nn.Model(x, rounded * 1.0)
        assert rounded.dtype == BF
        given = np.array([[1.0, 1.001, 3.141592]], np.float32)
        found = model.predict(given, verbose=0)
        np.testing.assert_array_equal(found, widen(round_to_bfloat16(given)))
        model.compile("sgd", "mse")
        model.train_on_batch(given, given)
        model.close()
        with pytest.raises(
            ValueError, match="float32, bfloat16, int32 or bool, got 'float'"
        ):
            nn.ops.cast(x, "float")

    def test_in_a_loss_numbers_are_float32(self):
        seen = []

        def squares(y_true, y_pred):
            difference = y_true - y_pred
            seen.extend([y_pred.dtype, difference.dtype])
            return nn.ops.mean(nn.ops.square(difference), axis=-1)

        mc.config.set_dtype_policy(MIXED)
        model = nn.Sequential([nn.Input((3,)), nn.Dense(1)])
        model.compile("sgd", squares)
        model.graph(2)
        assert {*seen} == {"float32"}
        model.close()


class TestRuns:
    def test_predictions_are_float32_and_near(self, data):
        found = []
        for policy in ("float32", MIXED):
            nn.set_random_seed(1)
            model = small(dtype=policy)
            found.append(model.predict(data[0], verbose=0))
            model.close()
        assert found[1].dtype == np.float32
        assert not np.array_equal(*found)
        np.testing.assert_allclose(found[1], found[0], atol=0.03)
        np.testing.assert_allclose(found[1].sum(1), 1, atol=1e-6)  # softmax in float32

    def test_all_policies_train_to_the_same_bits_and_take_what_they_say(self, data):
        found = []
        for memory in ("keep_all", "share", "replay_elementwise", "sqrt_checkpoint"):
            nn.set_random_seed(1)
            model = compiled(small(dtype=MIXED), memory=memory)
            losses = model.fit(*data, batch_size=8, epochs=3, verbose=0, seed=2).history
            report = model.memory_report(verify=True)
            assert report.measured_peak_bytes == model.memory_plan.peak_bytes
            found.append((losses["loss"], [w.tobytes() for w in model.get_weights()]))
            model.close()
        assert all(each == found[0] for each in found)
        assert found[0][0][-1] < found[0][0][0]

    def test_it_takes_less_memory(self, data):
        peaks = []
        for policy in ("float32", MIXED):
            x = h = nn.Input((32, 32, 3))
            for _ in range(6):
                h = nn.ReLU()(nn.BatchNormalization()(nn.Conv2D(8, 3)(h)))
            model = nn.Model(x, nn.Dense(5)(nn.GlobalAvgPool2D()(h)), dtype=policy)
            model.compile("sgd", "mse")
            peaks.append(model.plan(batch_size=64).peak_bytes)
            model.close()
        assert peaks[1] < 0.6 * peaks[0]  # 0.55 where products need no copies

    def test_gradients_are_those_of_float32_within_its_digits(self, data):
        steps = []
        for policy in ("float32", MIXED):
            nn.set_random_seed(1)
            x = h = nn.Input((8, 8, 3))
            h = nn.Conv2D(8, 3, activation="relu")(h)
            h = nn.BatchNormalization()(h)
            model = nn.Model(x, nn.Dense(5)(nn.Flatten()(h)), dtype=policy)
            model.compile(nn.SGD(1.0), "mse")
            before = model.get_weights()
            model.train_on_batch(data[0], np.eye(5, dtype=np.float32)[data[1]])
            after = model.get_weights()
            steps.append([a - b for a, b in zip(after, before, strict=True)])
            model.close()
        for exact, mixed in zip(*steps, strict=True):
            size = np.abs(exact).max()
            assert np.abs(exact - mixed).max() <= 0.1 * size + 1e-3

    def test_masks_and_penalties_are_float32(self):
        x = nn.Input((6,), dtype="int32")
        h = nn.Embedding(300, 8, mask_zero=True)(x)
        h = nn.LSTM(4, return_sequences=True)(h)
        y = nn.Dense(3, activity_regularizer=nn.regularizers.L2(0.1))(h)
        model = nn.Model(x, y, dtype=MIXED)
        loss = nn.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss)
        random = np.random.default_rng(0)
        tokens = random.integers(0, 300, (8, 6)).astype(np.int32)
        labels = random.integers(0, 3, (8, 6))
        history = model.fit(tokens, labels, epochs=3, verbose=0).history["loss"]
        assert history[-1] < history[0]
        model.close()

    def test_binary_losses_read_logits(self):
        model = nn.Sequential(
            [nn.Input((4,)), nn.Dense(1, activation="sigmoid")], dtype=MIXED
        )
        model.compile("sgd", "binary_crossentropy")
        types = {op.type for op in model.graph().ops}
        assert not any("probab" in each for each in types)
        x = np.full((2, 4), 100, np.float32)
        model.set_weights([np.full((4, 1), 1, np.float32), np.zeros(1, np.float32)])
        assert model.train_on_batch(x, np.zeros((2, 1))) == pytest.approx(400, rel=0.01)
        model.close()

    @pytest.mark.usefixtures("native_kernels")
    def test_large_scores_are_not_whole_behind_a_layer_of_float32(self):
        tokens = nn.Input((64,), dtype="int32")
        h = nn.Embedding(10, 8)(tokens)
        last = nn.Dense(40_000, dtype="float32")
        model = nn.Model(tokens, last(h), dtype=MIXED)
        model.compile("sgd", nn.SparseCategoricalCrossentropy(from_logits=True))
        assert "dense_cross_entropy" in {op.type for op in model.graph(8).ops}

    def test_noise_is_drawn_in_float32(self):
        noise = nn.GaussianNoise(1.0, dtype=MIXED)
        model = nn.Sequential([nn.Input((4,)), nn.Dense(4), noise], dtype=MIXED)
        model.compile("sgd", "mse")
        graph = model.graph()
        drawn = [op for op in graph.ops if op.type == "random_uniform"]
        readers = graph.consumers[drawn[0].outputs[0]]
        kinds = {graph.tensors[i].dtype for r in readers for i in graph.ops[r].inputs}
        assert kinds == {"float32"}
        model.close()

    def test_a_layer_of_ones_own(self, data):
        class Gate(nn.Layer):
            def build(self, input_shape):
                self.scale = self.add_weight((input_shape[-1],), "ones", name="scale")
                self.inner = nn.Dense(5)

            def call(self, x):
                return self.inner(x) * nn.ops.sigmoid(self.inner(x * self.scale))

        mc.config.set_dtype_policy(MIXED)
        model = nn.Sequential([nn.Input((8, 8, 3)), nn.Flatten(), Gate()])
        loss = nn.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss)
        model.fit(*data, verbose=0)
        assert {each.dtype for each in model.weights} == {"float32"}
        model.close()

    @pytest.mark.parametrize("optimizer", [nn.SGD(0.1), nn.Adam(0.01)], ids=repr)
    def test_updates_read_gradients_as_they_are(self, data, optimizer, monkeypatch):
        """A weight that is multiplied has a gradient of bfloat16."""

        class Scaled(nn.Layer):
            def build(self, input_shape):
                self.scale = self.add_weight((input_shape[-1],), "ones", name="scale")

            def call(self, x):
                return x * self.scale

        mc.config.set_dtype_policy(MIXED)
        found = []
        for narrow in (True, False):
            if not narrow:
                leave_out_rewrite(monkeypatch, "narrow_updates")
            nn.set_random_seed(1)
            model = nn.Sequential([nn.Input((8, 8, 3)), nn.Flatten(), Scaled()])
            model.add(nn.Dense(5))
            loss = nn.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(copy.deepcopy(optimizer), loss)
            graph = model.graph()
            read = [
                {graph.tensors[tensor].dtype for tensor in op.inputs}
                for op in graph.ops
                if op.phase == "update" and "scale" in op.name
            ]
            assert [BF in each for each in read] == [narrow]
            losses = [model.train_on_batch(*data) for _ in range(3)]
            found.append((losses, [w.tobytes() for w in model.get_weights()]))
            model.close()
        assert found[0] == found[1]

    def test_a_clipped_gradient_is_cast(self, data):
        mc.config.set_dtype_policy(MIXED)
        x = nn.Input((4,))
        model = nn.Model(x, nn.PReLU()(nn.Dense(3)(x)))
        model.compile(nn.SGD(0.1, global_clipnorm=0.1), "mse")
        assert np.isfinite(model.train_on_batch(data[0][:, 0, :4, 0], np.ones((24, 3))))
        model.close()

    def test_losses_of_ones_own_are_float32(self, data):
        def squares(y_true, y_pred):
            return nn.ops.mean(nn.ops.square(y_true - y_pred), axis=-1)

        mc.config.set_dtype_policy(MIXED)
        model = nn.Sequential([nn.Input((8, 8, 3)), nn.Flatten(), nn.Dense(1)])
        model.compile("sgd", squares)
        graph = model.graph()
        forward = [op for op in graph.ops if op.phase == "forward"]
        made = [graph.tensors[op.outputs[0]].dtype for op in forward]
        last = max(i for i, dtype in enumerate(made) if dtype == "bfloat16")
        assert forward[last].type == "dense_bias"
        assert {"multiply", "chain"} & {op.type for op in forward[last + 1 :]}
        model.close()


class TestFiles:
    def test_a_saved_model_computes_the_same(self, data, tmp_path):
        model = compiled(small(dtype=MIXED))
        model.layers[0].dtype_policy  # noqa: B018
        model.fit(*data, verbose=0)
        model.save(tmp_path / "mixed.memcfg")
        again = nn.models.load_model(tmp_path / "mixed.memcfg")
        for one, other in zip(model.layers, again.layers, strict=True):
            assert one.dtype_policy == other.dtype_policy
        assert again.dtype_policy.name == MIXED
        expected = model.predict(data[0], verbose=0)
        np.testing.assert_array_equal(again.predict(data[0], verbose=0), expected)
        first = model.train_on_batch(*data)
        assert again.train_on_batch(*data) == first
        model.close()
        again.close()

    def test_weights_are_float32_in_files(self, data, tmp_path):
        model, other = small(dtype=MIXED), small()
        model.save_weights(tmp_path / "some.weights.safetensors")
        other.load_weights(tmp_path / "some.weights.safetensors")
        for one, two in zip(model.get_weights(), other.get_weights(), strict=True):
            assert one.dtype == np.float32
            np.testing.assert_array_equal(one, two)
        model.close()
        other.close()

    def test_copies_keep_it(self, data):
        model = compiled(small(dtype=MIXED))
        model.fit(*data, verbose=0)
        again = copy.deepcopy(model)
        assert again.layers[0].compute_dtype == "bfloat16"
        assert again.dtype_policy.name == MIXED
        np.testing.assert_array_equal(
            again.predict(data[0], verbose=0), model.predict(data[0], verbose=0)
        )
        model.close()
        again.close()

    def test_summaries_show_it(self, capsys):
        small(dtype=MIXED).summary()
        assert capsys.readouterr().out.count("bfloat16") == 1  # in the title
        own = nn.Dense(5, dtype=MIXED)
        nn.Sequential([nn.Input((4,)), nn.Dense(3), own], dtype="float32").summary()
        assert capsys.readouterr().out.count("bfloat16") == 1  # at the layer
        small().summary()
        assert "float" not in capsys.readouterr().out


ONCE = """
import warnings
import numpy as np
import memcfg as mc

model = mc.nn.Sequential(
    [mc.nn.Input((6, 6, 3)), mc.nn.Conv2D(4, 3), mc.nn.Flatten(), mc.nn.Dense(3)],
    dtype="mixed_bfloat16",
)
model.compile("sgd", "mse")
x = np.random.default_rng(0).normal(size=(4, 6, 6, 3)).astype("f4")
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    print(model.train_on_batch(x, np.zeros((4, 3), "f4")) > 0)
    model.predict(x, verbose=0)
    model.memory_report(verify=True)
print(*[str(each.message)[:60] for each in found], sep="\\n")
report = model.memory_report(verify=True)
assert report.measured_peak_bytes == model.memory_plan.peak_bytes
"""


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE"])
def test_processors_without_it_are_told_once(isa):
    run = subprocess.run(
        [sys.executable, "-c", ONCE],
        env=os.environ | {"MEMCFG_KERNELS": "onednn", "ONEDNN_MAX_CPU_ISA": isa},
        capture_output=True,
        text=True,
        check=False,
    )
    if "MissingDependencyError" in run.stderr:
        pytest.skip("there is no oneDNN")
    assert run.returncode == 0, run.stderr
    first, *warned = run.stdout.splitlines()
    assert first == "True"
    assert len(warned) == 1
    assert "has no instructions for bfloat16" in warned[0]


REFUSED = "takes no bfloat16.*run on a CPU; on a GPU use dtype 'float32'"


def on(device, model):
    with mc.device(device):
        return compiled(model)


def test_simulated_gpus_refuse_it_as_gpus_do():
    mc.config.experimental.add_simulated_device("GPU", memory="8GiB")
    model = on("/GPU:0", small(dtype=MIXED))
    for call in (model.plan, model.graph):
        with pytest.raises(KernelError, match=f"^/device:GPU:0 {REFUSED}"):
            call(4)
    assert on("/GPU:0", small()).plan(4).peak_bytes > 0


def test_other_simulated_devices_plan_it():
    mc.config.experimental.add_simulated_device("TPU", memory="8GiB")
    peaks = [
        on("/TPU:0", small(dtype=policy)).plan(64).peak_bytes
        for policy in ("float32", MIXED)
    ]
    assert peaks[1] < peaks[0]
