"""Plan a network by an integer program over its layers, beside the default search."""

import memcfg as mc

try:
    import highspy  # noqa: F401  (it solves the program)
except ImportError:
    raise SystemExit("This example needs HiGHS: pip install highspy") from None

model = mc.models.vgg16()
model.compile("sgd", mc.nn.SparseCategoricalCrossentropy(from_logits=True))
graph = model.graph(16)
auto, layers = mc.plan.auto(), mc.plan.checkmate(granularity="layer")

most = mc.plan.share()(graph).peak_bytes
limit = most - 100 * 2**20
seconds = {}
for policy in (auto, layers):
    plan = policy(graph, limit_bytes=limit)
    mc.plan.validate(graph, plan)
    assert plan.peak_bytes <= limit
    seconds[policy] = plan.predicted.recompute_seconds
    print(f"{policy.name:10} {plan.predicted.recompute_seconds * 1e3:8.1f} ms again")
assert 0 < seconds[layers] <= seconds[auto]

try:
    mc.plan.checkmate()(graph, limit_bytes=limit)
except mc.errors.PlanError as error:
    print(error)  # the program over ops is for small graphs
