"""Makes some of tests/differential/cases: small models of operators that the random ones leave out, with what onnxruntime
computes.

    pip install onnx onnxruntime
    python scripts/onnx_cases.py tests/differential/cases [NAME...]

Those named alone are made where names follow; others would get other numbers.
"""

import os
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

rng = np.random.default_rng(1)


def floats(*shape):
    return rng.normal(size=shape).astype("float32")


def case(name, nodes, inputs, constants, outputs, opset=19, beside=None, then=None, alone=False):
    """`outputs` are names; constants are arrays, or tensors as they are, in a file `beside` where that is said; `then` changes
    the model after onnxruntime has run it. What is `alone` has a test of its own."""
    if sys.argv[2:] and name not in sys.argv[2:]:
        return
    tensors = [value if isinstance(value, T) else numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items()]
    infos = [h.make_tensor_value_info(key, h.np_dtype_to_tensor_dtype(value.dtype), value.shape) for key, value in inputs.items()]
    made = [h.make_tensor_value_info(key, kind, None) for key, kind in outputs.items()]
    graph = h.make_graph(nodes, name, infos, made, tensors)
    domains = [h.make_opsetid("", opset), h.make_opsetid("com.microsoft", 1), h.make_opsetid("ai.onnx.ml", 3)]
    model = h.make_model(graph, opset_imports=domains, ir_version=9)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results = session.run(None, inputs)
    if then:
        then(model)
    if beside:
        with open(f"{own_folder(name)}/{beside}", "wb") as file:
            attributes = [attribute.t for node in model.graph.node for attribute in node.attribute if attribute.type == attribute.TENSOR]
            for tensor in [*model.graph.initializer, *attributes]:
                # Tensors of few bits and of nodes alone lie in the other file.
                if tensor.data_type in (T.INT4, T.UINT4) or tensor in attributes:
                    data, start = bytes(value & 255 for value in tensor.int32_data) or tensor.raw_data, file.tell()
                    file.write(data)
                    tensor.ClearField("int32_data")
                    tensor.raw_data = data
                    onnx.external_data_helper.set_external_data(tensor, beside, start, len(data))
                    tensor.ClearField("raw_data")
    if beside or alone:
        folder = own_folder(name)
        onnx.save(model, f"{folder}/model.onnx")
        np.savez_compressed(f"{folder}/io.npz", **{f"in_{at}": value for at, value in enumerate(inputs.values())},
                            **{f"out_{at}": value for at, value in enumerate(results)})
        return
    folder = f"{sys.argv[1]}/{name}/test_data_set_0"
    os.makedirs(folder, exist_ok=True)
    onnx.save(model, f"{sys.argv[1]}/{name}/model.onnx")
    for kind, arrays in [("input", list(inputs.items())), ("output", list(zip(outputs, results)))]:
        for at, (key, value) in enumerate(arrays):
            with open(f"{folder}/{kind}_{at}.pb", "wb") as file:
                file.write(numpy_helper.from_array(np.asarray(value), key).SerializeToString())


def own_folder(name):
    folder = f"{sys.argv[1]}/../../onnx/{name}"
    os.makedirs(folder, exist_ok=True)
    return folder


def eight_bits(key, kind, values):
    return h.make_tensor(key, kind, np.shape(values), np.ravel(values))


# Floats of eight bits as activations and weights.
for number, (name, kind) in enumerate([("e4m3", T.FLOAT8E4M3FN), ("e5m2", T.FLOAT8E5M2)]):
    case(f"quantised_floats_{name}", [
        h.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), h.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        h.make_node("DequantizeLinear", ["w", "t"], ["v"], axis=1), h.make_node("MatMul", ["d", "v"], ["y"]),
    ], {"x": floats(3, 4) * 20}, {
        "s": np.float32(0.05), "z": eight_bits("z", kind, 0.0), "t": np.array([0.1, 0.2, 0.3, 0.4, 0.5], "float32"),
        "w": eight_bits("w", kind, floats(4, 5)),
    }, {"d": T.FLOAT, "y": T.FLOAT})
case("quantised_to_u16", [
    h.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), h.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
], {"x": floats(3, 4)}, {"s": np.float32(1e-4), "z": np.uint16(30000)}, {"q": T.UINT16, "y": T.FLOAT}, opset=21)
case("reductions_over_what_data_counts", [
    h.make_node("Greater", ["x", "zero"], ["c"]), h.make_node("NonZero", ["c"], ["n"]), h.make_node("Transpose", ["n"], ["t"]),
    h.make_node("GatherND", ["x", "t"], ["p"]),
    *[h.make_node("Reduce" + kind, ["p"], [kind], keepdims=0) for kind in ("Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "LogSumExp")],
], {"x": floats(3, 5)}, {"zero": np.float32(0)}, {kind: T.FLOAT for kind in ("Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "LogSumExp")})
case("limits_that_are_running_sums", [
    h.make_node("CumSum", ["times", "first"], ["ends"]), h.make_node("Gather", ["ends", "last"], ["end"]),
    h.make_node("Range", ["zero", "end", "one"], ["places"]), h.make_node("Unsqueeze", ["ends", "behind"], ["column"]),
    h.make_node("GreaterOrEqual", ["places", "column"], ["passed"]), h.make_node("Cast", ["passed"], ["number"], to=T.INT64),
    h.make_node("ReduceSum", ["number", "sum_axis"], ["of"], keepdims=0), h.make_node("Gather", ["x", "of"], ["y"]),
], {"x": floats(3, 2)}, {
    "times": np.array([1, 2, 3]), "first": np.array(0), "last": np.array(2), "zero": np.array(0), "one": np.array(1),
    "behind": np.array([1]), "sum_axis": np.array([0]),
}, {"y": T.FLOAT})
for name, (low, high), causal in [("bytes", (90, 170), 0), ("causal", (100, 150), 1)]:
    case(f"quantised_attention_of_{name}", [
        h.make_node("QAttention", ["x", "w", "b", "xs", "ws", "" if causal else "m", "xz", "wz"], ["y"], domain="com.microsoft", num_heads=2, unidirectional=causal),
    ], {"x": rng.integers(low, high, (2, 5, 8)).astype("uint8"), **({} if causal else {"m": np.array([[1, 1, 1, 0, 0], [1] * 5], "int32")})}, {
        "w": rng.integers(-60, 60, (8, 24)).astype("int8"), "b": floats(24), "xs": np.float32(0.02), "ws": np.float32(0.01),
        "xz": np.uint8(128), "wz": np.int8(0),
    }, {"y": T.FLOAT})
# A machine for each pair of three classes, with probabilities; a leaf's number written once for each class.
case("pairs_of_classes_with_probabilities", [
    h.make_node("SVMClassifier", ["x"], ["label", "shares"], domain="ai.onnx.ml", classlabels_ints=[0, 1, 2], vectors_per_class=[2, 2, 1],
                support_vectors=np.ravel(floats(5, 4)), coefficients=np.ravel(floats(2, 5)), rho=floats(3), kernel_type="RBF", kernel_params=[0.3, 0.0, 3.0],
                prob_a=[-1.5, -2.0, -0.5], prob_b=[0.1, -0.2, 0.3], post_transform="NONE"),
], {"x": floats(9, 4)}, {}, {"label": T.INT64, "shares": T.FLOAT})
case("leaves_written_several_times", [
    h.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[1, 0, 0],
                nodes_values=[0.1, 0.0, 0.0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
                target_treeids=[0] * 4, target_nodeids=[1, 1, 2, 2], target_ids=[0] * 4, target_weights=[3.0, 3.0, 5.0, 5.0]),
], {"x": floats(6, 2)}, {}, {"y": T.FLOAT})
# Sizes that follow from what is known while the file is read.
case("as_many_as_a_known_condition_says", [
    h.make_node("Compress", ["x", "holds"], ["some"], axis=1), h.make_node("Add", ["some", "b"], ["sum"]),
    h.make_node("NonZero", ["mask"], ["places"]), h.make_node("Gather", ["x", "places"], ["picked"], axis=0),
    h.make_node("Pow", ["count", "half"], ["side"]), h.make_node("Cast", ["side"], ["side_i"], to=T.INT64),
    h.make_node("Concat", ["side_i", "rest"], ["shape"], axis=0), h.make_node("Reshape", ["x", "shape"], ["square"]),
], {"x": floats(4, 4), "b": floats(4, 2)}, {
    "holds": np.array([True, False, False, True]), "mask": np.array([0, 3, 0, 1.5], "float32"), "count": np.array([16.0], "float32"),
    "half": np.array([0.5], "float32"), "rest": np.array([2, -1]),
}, {"sum": T.FLOAT, "picked": T.FLOAT, "square": T.FLOAT})
case("labels_that_are_texts_as_numbers", [
    h.make_node("LinearClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", classlabels_strings=["ant", "bee", "cat"], coefficients=np.ravel(floats(3, 4)), intercepts=floats(3)),
    h.make_node("ArrayFeatureExtractor", ["names", "one"], ["picked"], domain="ai.onnx.ml"),
    h.make_node("LabelEncoder", ["label"], ["number"], domain="ai.onnx.ml", keys_strings=["cat", "ant"], values_int64s=[7, 5], default_int64=-3),
    h.make_node("LabelEncoder", ["picked"], ["share"], domain="ai.onnx.ml", keys_strings=["dog", "elk"], values_floats=[0.5, 0.25]),
], {"x": floats(9, 4)}, {"names": np.array([["elk", "dog", "elk"]], object), "one": np.array([1])}, {"number": T.INT64, "scores": T.FLOAT, "share": T.FLOAT})
case("trees_of_two_classes_with_a_logistic_end", [
    h.make_node("TreeEnsembleClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", classlabels_int64s=[5, 6], nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2],
                nodes_featureids=[1, 0, 0], nodes_values=[0.1, 0.0, 0.0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_truenodeids=[1, 0, 0],
                nodes_falsenodeids=[2, 0, 0], class_treeids=[0, 0], class_nodeids=[1, 2], class_ids=[0, 0], class_weights=[0.25, 0.75], post_transform="LOGISTIC"),
], {"x": floats(6, 2)}, {}, {"label": T.INT64, "scores": T.FLOAT})
case("nearest_by_scales_with_fractions", [
    h.make_node("Resize", ["x", "", "scales"], ["y"], coordinate_transformation_mode="half_pixel", nearest_mode="floor"),
], {"x": floats(4, 5)}, {"scales": np.array([0.6, 3.0], "float32")}, {"y": T.FLOAT})
# Weights of two bits, whose last block is cut short, with zero points packed four to a byte; tables of four bits, an element each.
case("products_of_two_bits", [
    h.make_node("MatMulNBits", ["x", "w", "s", "z"], ["y"], domain="com.microsoft", bits=2, block_size=16, K=40, N=6),
    h.make_node("MatMulNBits", ["x", "w", "s"], ["middle"], domain="com.microsoft", bits=2, block_size=16, K=40, N=6),
], {"x": floats(3, 40)}, {
    "w": rng.integers(0, 256, (6, 3, 4)).astype("uint8"), "s": abs(floats(6, 3)), "z": rng.integers(0, 256, (6, 1)).astype("uint8"),
}, {"y": T.FLOAT, "middle": T.FLOAT})
for name, kind, low in [("signed", T.INT4, -8), ("unsigned", T.UINT4, 0)]:
    case(f"rows_of_four_bits_{name}", [
        h.make_node("GatherBlockQuantized", ["w", "i", "s", "z"], ["y"], domain="com.microsoft", block_size=16, gather_axis=0, quantize_axis=1),
        h.make_node("GatherBlockQuantized", ["w", "i", "s"], ["plain"], domain="com.microsoft", block_size=16, gather_axis=0, quantize_axis=1),
        h.make_node("GatherBlockQuantized", ["v", "i", "t"], ["columns"], domain="com.microsoft", block_size=16, gather_axis=1, quantize_axis=0),
    ], {"i": np.array([[3, 0], [4, 3]])}, {
        "w": h.make_tensor("w", kind, [5, 32], rng.integers(low, low + 16, 160).tolist()), "s": abs(floats(5, 2)),
        "z": h.make_tensor("z", kind, [5, 2], rng.integers(low, low + 16, 10).tolist()),
        "v": h.make_tensor("v", kind, [32, 5], rng.integers(low, low + 16, 160).tolist()), "t": abs(floats(2, 5)),
    }, {"y": T.FLOAT, "plain": T.FLOAT, "columns": T.FLOAT}, opset=21)
# Elements of four bits in a file beside the model, an odd number of them.
case("four_bits_in_another_file", [
    h.make_node("DequantizeLinear", ["w", "s", "z"], ["wide"], axis=1), h.make_node("MatMul", ["x", "wide"], ["y"]),
    h.make_node("DequantizeLinear", ["v", "t"], ["far"], axis=0, block_size=3), h.make_node("Add", ["x", "far"], ["sum"]),
], {"x": floats(3, 7)}, {
    "w": h.make_tensor("w", T.INT4, [7, 5], rng.integers(-8, 8, 35).tolist()), "s": abs(floats(5)),
    "z": h.make_tensor("z", T.INT4, [5], rng.integers(-8, 8, 5).tolist()),
    "v": h.make_tensor("v", T.UINT4, [3, 7], rng.integers(0, 16, 21).tolist()), "t": abs(floats(1, 7)),
}, {"y": T.FLOAT, "sum": T.FLOAT}, opset=21, beside="weights.bin")
# Ranges up to a limit of data that is bounded: by a number, by what is counted, by places, by how many elements were chosen.
case("ranges_up_to_bounded_data", [
    h.make_node("ReduceMax", ["lengths"], ["longest"], keepdims=0), h.make_node("Min", ["longest", "eight"], ["limit"]),
    h.make_node("Range", ["zero", "limit", "one"], ["places"]), h.make_node("Gather", ["table", "places"], ["rows"]),
    h.make_node("Greater", ["x", "none"], ["holds"]), h.make_node("Cast", ["holds"], ["ones"], to=T.INT64),
    h.make_node("ReduceSum", ["ones"], ["held"], keepdims=0), h.make_node("Range", ["one", "held", "two"], ["odd"]),
    h.make_node("ArgMax", ["x"], ["best"], axis=0, keepdims=0), h.make_node("Range", ["zero", "best", "one"], ["before"]),
    h.make_node("NonZero", ["holds"], ["found"]), h.make_node("Shape", ["found"], ["sizes"]), h.make_node("Gather", ["sizes", "one"], ["size"]),
    h.make_node("Range", ["zero", "size", "one"], ["counted"]),
], {"lengths": np.array([3, 5, 2]), "x": floats(9)}, {
    "eight": np.array(8), "zero": np.array(0), "one": np.array(1), "two": np.array(2), "none": np.float32(0), "table": floats(8, 3),
}, {"places": T.INT64, "rows": T.FLOAT, "odd": T.INT64, "before": T.INT64, "counted": T.INT64})
# A loop that data ends, and what it stacks until then.
value = lambda key, kind, shape: h.make_tensor_value_info(key, kind, shape)
case("loops_that_stack_until_data_says", [
    h.make_node("Loop", ["most", "start", "x"], ["last", "stacked"], body=h.make_graph([
        h.make_node("Mul", ["old", "two"], ["new"]), h.make_node("ReduceSum", ["new"], ["sum"], keepdims=0),
        h.make_node("Less", ["sum", "limit"], ["goes_on"]), h.make_node("Identity", ["new"], ["part"]),
    ], "body", [value("trip", T.INT64, []), value("before", T.BOOL, []), value("old", T.FLOAT, [3])],
        [value("goes_on", T.BOOL, []), value("new", T.FLOAT, [3]), value("part", T.FLOAT, [3])])),
    h.make_node("ReduceSum", ["stacked", "first"], ["sums"], keepdims=0),
], {"x": abs(floats(3))}, {"most": np.array(9), "start": np.array(True), "two": np.float32(2), "limit": np.float32(60), "first": np.array([0])},
    {"last": T.FLOAT, "stacked": T.FLOAT, "sums": T.FLOAT})
# As many updates as data has, to elements and to rows; sums of what counts so far.
case("updates_of_what_data_names", [
    h.make_node("Greater", ["x", "zero"], ["holds"]), h.make_node("NonZero", ["holds"], ["n"]), h.make_node("Transpose", ["n"], ["at"]),
    h.make_node("GatherND", ["x", "at"], ["v"]), h.make_node("Neg", ["v"], ["u"]), h.make_node("ScatterND", ["x", "at", "u"], ["elements"]),
    h.make_node("ScatterND", ["x", "at", "v"], ["sums"], reduction="add"), h.make_node("CumSum", ["v", "none"], ["running"]),
    h.make_node("Compress", ["row", "some"], ["picked"], axis=0), h.make_node("Cast", ["picked"], ["numbers"], to=T.FLOAT),
    h.make_node("ScatterElements", ["row", "picked", "picked"], ["placed"], axis=0),
], {"x": floats(3, 4), "row": np.array([3, 0, 2, 1, 5, 4], "int64"), "some": np.array([True, False, True, False, False, True])},
    {"zero": np.float32(0), "none": np.int64(0)}, {"elements": T.FLOAT, "sums": T.FLOAT, "running": T.FLOAT, "placed": T.INT64})
# What data has chosen, chosen from again: places, rows, sizes as numbers, branches that give as many elements as they say.
rows = lambda key: h.make_tensor_value_info(key, T.FLOAT, [None, 4])
case("choices_of_what_data_chose", [
    h.make_node("ReduceMax", ["x", "last"], ["best"], keepdims=0), h.make_node("Greater", ["best", "half"], ["holds"]),
    h.make_node("Compress", ["x", "holds"], ["some"], axis=0), h.make_node("Greater", ["some", "zero"], ["above"]),
    h.make_node("NonZero", ["above"], ["places"]), h.make_node("ArgMax", ["some"], ["where"], axis=1, keepdims=0),
    h.make_node("Greater", ["where", "one"], ["late"]), h.make_node("Compress", ["some", "late"], ["fewer"], axis=0),
    h.make_node("Compress", ["some", "first"], ["front"]), h.make_node("Size", ["fewer"], ["size"]),
    h.make_node("Greater", ["size", "four"], ["many"]),
    h.make_node("If", ["many"], ["taken", "again"], then_branch=h.make_graph(
        [h.make_node("Identity", ["fewer"], ["a"]), h.make_node("Neg", ["fewer"], ["b"])], "then", [], [rows("a"), rows("b")]),
        else_branch=h.make_graph([h.make_node("Identity", ["some"], ["c"]), h.make_node("Abs", ["some"], ["d"])], "else", [], [rows("c"), rows("d")])),
    h.make_node("Add", ["taken", "again"], ["sum"]), h.make_node("TopK", ["sum", "two"], ["most", "at"], axis=1),
    h.make_node("GatherElements", ["sum", "at"], ["same"], axis=1), h.make_node("LayerNormalization", ["taken", "factor"], ["normed"], axis=-1),
    h.make_node("Shape", ["some"], ["sizes"]), h.make_node("Mul", ["sizes", "sizes"], ["squares"]),
], {"x": floats(6, 4)}, {
    "last": np.array([1]), "half": np.float32(0.5), "zero": np.float32(0), "one": np.int64(1), "four": np.int64(4), "two": np.array([2]),
    "first": np.array([False, True, True]), "factor": floats(4),
}, {"places": T.INT64, "fewer": T.FLOAT, "front": T.FLOAT, "size": T.INT64, "most": T.FLOAT, "at": T.INT64, "same": T.FLOAT, "normed": T.FLOAT,
    "squares": T.INT64})
# A shape in parts, as onnxruntime's optimiser writes it; a triangle whose diagonal is a size; groups of rows without pixels.
case("shapes_in_parts", [
    h.make_node("Shape", ["x"], ["s"]), h.make_node("Split", ["s", "ones"], ["rows", "columns"]),
    h.make_node("Concat", ["rows", "two", "columns"], ["sizes"], axis=0), h.make_node("Unsqueeze", ["x", "one"], ["deep"]),
    h.make_node("Expand", ["deep", "sizes"], ["wide"]), h.make_node("ReduceSum", ["k"], ["places"], keepdims=0),
    h.make_node("Trilu", ["x", "places"], ["triangle"], upper=0),
    h.make_node("GroupNormalization", ["x", "factor", "summand"], ["normed"], num_groups=2),
], {"x": floats(3, 4), "k": np.array([2, -1], "int64")}, {
    "ones": np.array([1, 1], "int64"), "one": np.array([1], "int64"), "two": np.array([2], "int64"), "factor": floats(4), "summand": floats(4),
}, {"wide": T.FLOAT, "triangle": T.FLOAT, "normed": T.FLOAT}, opset=21)
# Rows of another tensor in the places that a mask says, as exporters write `masked_scatter`: fewer rows than places may be, and as many.
case("rows_put_where_a_mask_holds", [
    h.make_node("Expand", ["mask", "sizes"], ["wide"]), h.make_node("NonZero", ["wide"], ["n"]), h.make_node("Transpose", ["n"], ["at"]),
    h.make_node("Reshape", ["rows", "flat"], ["source"]), h.make_node("Shape", ["at"], ["s"]), h.make_node("Gather", ["s", "first"], ["count"]),
    h.make_node("Slice", ["source", "first", "count", "first"], ["some"]), h.make_node("ScatterND", ["x", "at", "some"], ["y"]),
    h.make_node("Reshape", ["all", "flat"], ["every"]), h.make_node("Slice", ["every", "first", "count"], ["begun"]),
    h.make_node("ScatterND", ["x", "at", "begun"], ["z"]), h.make_node("ReduceSum", ["some", "first"], ["sum"], keepdims=0),
    h.make_node("Neg", ["begun"], ["turned"]),
], {"x": floats(2, 5, 4), "mask": np.array([[0, 1, 1, 0, 0], [1, 0, 0, 1, 0]], bool)[..., None], "rows": floats(4, 4), "all": floats(10, 4)},
    {"sizes": np.array([2, 5, 4]), "flat": np.array([-1]), "first": np.array([0])},
    {"y": T.FLOAT, "z": T.FLOAT, "sum": T.FLOAT, "turned": T.FLOAT})
# A loop without a number of iterations: a counter ends it, or data before; one that data ends, and one that never runs.
def while_loop(name, condition, limit):
    value = h.make_tensor_value_info
    return h.make_graph([
        h.make_node("Add", [f"{name}_i", "one"], [f"{name}_j"]), h.make_node("Mul", [f"{name}_y", "half"], [f"{name}_z"]),
        h.make_node("Less", [f"{name}_j", limit], [f"{name}_counts"]), h.make_node("ReduceSum", [f"{name}_z"], [f"{name}_sum"], keepdims=0),
        h.make_node("Less", [f"{name}_sum", "most"], [f"{name}_small"]), *condition, h.make_node("Identity", [f"{name}_z"], [f"{name}_part"]),
    ], name, [value(f"{name}_trip", T.INT64, []), value(f"{name}_before", T.BOOL, []), value(f"{name}_i", T.INT64, []), value(f"{name}_y", T.FLOAT, [3])],
        [value(f"{name}_on", T.BOOL, []), value(f"{name}_j", T.INT64, []), value(f"{name}_z", T.FLOAT, [3]), value(f"{name}_part", T.FLOAT, [3])])
both = [h.make_node("And", ["a_counts", "a_small"], ["a_on"])]
neither = [h.make_node("Not", ["b_counts"], ["b_done"]), h.make_node("Not", ["b_small"], ["b_large"]),
           h.make_node("Or", ["b_done", "b_large"], ["b_over"]), h.make_node("Not", ["b_over"], ["b_on"])]
case("loops_that_a_counter_or_data_ends", [
    h.make_node("Loop", ["", "start", "zero", "x"], ["count", "last", "stack"], body=while_loop("a", both, "ten")),
    h.make_node("Loop", ["", "start", "zero", "x"], ["short", "early", "few"], body=while_loop("b", neither, "four")),
    h.make_node("ReduceSum", ["stack", "zeros"], ["sums"], keepdims=0),
], {"x": abs(floats(3)) + 1}, {"start": np.array(True), "zero": np.int64(0), "one": np.int64(1), "ten": np.int64(10), "four": np.int64(4),
    "half": np.float32(1.5), "most": np.float32(60), "zeros": np.array([0])},
    {"count": T.INT64, "last": T.FLOAT, "stack": T.FLOAT, "sums": T.FLOAT, "short": T.INT64, "early": T.FLOAT, "few": T.FLOAT})
# The ends of detectors as exporters write them: of the boxes whose scores are high the best, those that do not overlap, of none an
# empty list; regions of these, that are put where their level says; rows and channels as one axis; sizes written as -1.
empty = h.make_graph([h.make_node("Identity", ["none"], ["nothing"])], "empty", [], [h.make_tensor_value_info("nothing", T.INT64, [0])])
kept = h.make_graph([
    h.make_node("Unsqueeze", ["boxes_k", "first"], ["boxes_1"]), h.make_node("Unsqueeze", ["best", "first_two"], ["scores_1"]),
    h.make_node("NonMaxSuppression", ["boxes_1", "scores_1", "many", "overlap"], ["rows"]), h.make_node("Gather", ["rows", "two"], ["column"], axis=1),
    h.make_node("Squeeze", ["column", "behind"], ["keep"]),
], "kept", [], [h.make_tensor_value_info("keep", T.INT64, None)])
detector = [
    h.make_node("Greater", ["scores", "least"], ["high"]), h.make_node("NonZero", ["high"], ["n"]), h.make_node("Squeeze", ["n", "first"], ["places"]),
    h.make_node("Gather", ["scores", "places"], ["some"]), h.make_node("Shape", ["places"], ["s"]), h.make_node("Concat", ["most", "s"], ["both"], axis=0),
    h.make_node("ReduceMin", ["both"], ["k0"], keepdims=0), h.make_node("Reshape", ["k0", "flat"], ["k"]),
    h.make_node("TopK", ["some", "k"], ["best", "of"]), h.make_node("Gather", ["places", "of"], ["which"]), h.make_node("Gather", ["boxes", "which"], ["boxes_k"]),
    h.make_node("Size", ["best"], ["count"]), h.make_node("Equal", ["count", "zero"], ["is_none"]), h.make_node("If", ["is_none"], ["kept"], then_branch=empty, else_branch=kept),
    h.make_node("Slice", ["kept", "first", "limit"], ["few"]), h.make_node("Gather", ["boxes_k", "few"], ["found"]), h.make_node("Gather", ["best", "few"], ["scored"]),
]
tail = [
    h.make_node("Shape", ["found"], ["fs"]), h.make_node("Gather", ["fs", "first"], ["f"]), h.make_node("ConstantOfShape", ["f"], ["images"], value=h.make_tensor("v", T.INT64, [1], [0])),
    h.make_node("RoiAlign", ["image", "found", "images"], ["regions"], output_height=2, output_width=2, sampling_ratio=2),
    h.make_node("Conv", ["regions", "w"], ["features"]), h.make_node("Flatten", ["features"], ["line"], axis=1), h.make_node("Reshape", ["line", "flat"], ["all"]),
    h.make_node("ReduceSum", ["all", "first"], ["total"], keepdims=0), h.make_node("Concat", ["f", "flat", "flat", "flat"], ["asked"], axis=0),
    h.make_node("Equal", ["asked", "minus"], ["open"]), h.make_node("Where", ["open", "ones", "asked"], ["sizes"]), h.make_node("Range", ["zero", "f0", "one"], ["numbers"]),
    h.make_node("Squeeze", ["f", "first"], ["f0"]), h.make_node("Unsqueeze", ["numbers", "last_two"], ["index"]), h.make_node("Unsqueeze", ["scored", "last_two"], ["added"]),
    h.make_node("Expand", ["index", "sizes"], ["at"]), h.make_node("ScatterElements", ["features", "at", "added"], ["y"], axis=0),
]
order = [node for node in tail if node.output[0] != "f0"]
order.insert(2, next(node for node in tail if node.output[0] == "f0"))
corners = rng.uniform(0, 6, (9, 2)).astype("float32")
for name, least in [("boxes_of_which_some_are_found", 0.2), ("boxes_of_which_none_is_found", 9.0)]:
    case(name, detector + order, {"scores": floats(9), "boxes": np.concatenate([corners, corners + rng.uniform(1, 4, (9, 2))], 1).astype("float32"), "image": floats(1, 3, 8, 8)}, {
        "least": np.float32(least), "first": np.array([0]), "most": np.array([6]), "flat": np.array([-1]), "zero": np.int64(0), "one": np.int64(1), "none": np.zeros(0, "int64"),
        "first_two": np.array([0, 1]), "many": np.array([2**31 - 1]), "overlap": np.array([0.3], "float32"), "two": np.array([2]), "behind": np.array([1]), "limit": np.array([4]),
        "w": floats(2, 3, 1, 1), "minus": np.array([-1, -1, -1, -1]), "ones": np.array([1, 1, 1, 1]), "last_two": np.array([1, 2, 3]),
    }, {"found": T.FLOAT, "scored": T.FLOAT, "total": T.FLOAT, "y": T.FLOAT})
# Sizes that go through reductions of floats, as detectors are exported that take images of several sizes.
case("sizes_through_reductions_of_floats", [
    h.make_node("Shape", ["x"], ["a"]), h.make_node("Shape", ["y"], ["b"]), h.make_node("Concat", ["a", "b"], ["ab"], axis=0), h.make_node("Reshape", ["ab", "pairs"], ["table"]),
    h.make_node("Cast", ["table"], ["wide"], to=T.FLOAT), h.make_node("ReduceMax", ["wide"], ["most"], axes=[0], keepdims=0), h.make_node("ReduceMean", ["wide"], ["mean"], keepdims=0),
    h.make_node("Ceil", ["mean"], ["up"]), h.make_node("Cast", ["up"], ["n"], to=T.INT64), h.make_node("Reshape", ["n", "one"], ["n1"]), h.make_node("Cast", ["most"], ["whole"], to=T.INT64),
    h.make_node("Concat", ["whole", "n1"], ["sizes"], axis=0), h.make_node("ConstantOfShape", ["sizes"], ["zeros"]), h.make_node("Add", ["zeros", "tail"], ["z"]),
], {"x": floats(2, 5), "y": floats(3, 4)}, {"pairs": np.array([2, 2]), "one": np.array([1]), "tail": floats(4)}, {"z": T.FLOAT}, opset=17)
# What onnxruntime's optimisers write into files of older opsets: its own normalisation, casts with the attribute of a later
# opset, products with each of its activations, and nodes that stand behind a graph that reads them.
case("layer_normalization_of_an_older_opset", [
    h.make_node("LayerNormalization", ["x", "scale", "shift"], ["y"], axis=-1, epsilon=1e-5), h.make_node("LayerNormalization", ["y", "z"], ["w"], axis=1),
], {"x": floats(2, 3, 5), "z": floats(3, 5)}, {"scale": floats(5), "shift": floats(5)}, {"y": T.FLOAT, "w": T.FLOAT}, opset=14)
def saturate(model):
    for node in model.graph.node:
        if node.op_type == "Cast":
            node.attribute.append(h.make_attribute("saturate", 1))


case("casts_that_state_saturation", [
    h.make_node("Cast", ["x"], ["half"], to=T.FLOAT16), h.make_node("Cast", ["half"], ["y"], to=T.FLOAT), h.make_node("Cast", ["size"], ["wide"], to=T.INT64), h.make_node("Reshape", ["y", "wide"], ["z"]),
], {"x": floats(2, 6)}, {"size": np.array([3, 4], "int32")}, {"z": T.FLOAT}, opset=14, then=saturate)
activations = [
    ("Elu", [0.7]), ("Selu", [1.5, 1.2]), ("Softplus", []), ("Softsign", []), ("ThresholdedRelu", [0.3]), ("Relu", []), ("Tanh", []), ("Sigmoid", []),
    ("LeakyRelu", [0.2]), ("HardSigmoid", [0.25, 0.4]),
]
names = [["activation_alpha"], ["activation_alpha", "activation_gamma"], [], [], ["activation_alpha"], [], [], [], ["activation_alpha"], ["activation_alpha", "activation_beta"]]
case("products_with_activations", [
    h.make_node("FusedGemm", ["x", "w", "b"], [f"y{at}"], domain="com.microsoft", activation=kind, alpha=0.8, beta=1.1, transB=1, **dict(zip(keys, numbers)))
    for at, ((kind, numbers), keys) in enumerate(zip(activations, names))
], {"x": floats(4, 3)}, {"w": floats(5, 3), "b": floats(5)}, {f"y{at}": T.FLOAT for at in range(len(activations))})
reading = [
    h.make_graph([h.make_node(kind, ["x", "late"], ["inner"])], kind, [], [h.make_tensor_value_info("inner", T.FLOAT, [2, 3])]) for kind in ("Mul", "Sub")
]
case("bodies_that_read_what_stands_behind", [
    h.make_node("If", ["yes"], ["a"], then_branch=reading[0], else_branch=reading[1]), h.make_node("Add", ["x", "c"], ["late"]), h.make_node("Add", ["a", "late"], ["y"]),
], {"x": floats(2, 3), "yes": np.array(False)}, {"c": floats(3)}, {"y": T.FLOAT})
for name, (past, rows), window in [("prompt", (0, 5), -1), ("window", (0, 5), 2), ("step", (3, 1), -1)]:
    caches = {"pk": floats(2, 2, past, 8), "pv": floats(2, 2, past, 8)} if past else {}
    case(f"capped_scores_of_a_{name}", [
        h.make_node("GroupQueryAttention", ["q", "k", "v", *(caches or ["", ""]), "seqlens", "total"], ["y", "ok", "ov"], domain="com.microsoft",
                    num_heads=4, kv_num_heads=2, softcap=0.7, local_window_size=window),
    ], {"q": floats(2, rows, 32), "k": floats(2, rows, 16), "v": floats(2, rows, 16), **caches}, {
        "seqlens": np.array([past + rows - 1] * 2, "int32"), "total": np.array(past + rows, "int32"),
    }, {"y": T.FLOAT, "ok": T.FLOAT, "ov": T.FLOAT})
# Tests of every kind that compares, at the numbers themselves, with what is no number or beyond all numbers.
grid = np.array([-np.inf, -1.5, -0.0, 0.0, 1e-45, 0.5, 2.0, np.inf, np.nan], "float32")
for kind, modes in [("alike", ["BRANCH_LEQ"]), ("strict", ["BRANCH_LT"]), ("of_all_kinds", ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT"])]:
    trees, inner, nodes = 21, 2 ** 4 - 1, 2 ** 5 - 1
    number, tree, own = np.tile(np.arange(nodes), trees), np.repeat(np.arange(trees), nodes), np.random.default_rng(len(kind))
    leaf = number >= inner
    below = lambda side: np.where(leaf, 0, 2 * number + side).tolist()
    split = own.choice(grid[1:-1], len(number))
    case(f"trees_{kind}", [
        h.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=2, nodes_treeids=tree.tolist(), nodes_nodeids=number.tolist(),
                    nodes_featureids=np.where(leaf, 0, own.integers(0, 4, len(number))).tolist(), nodes_values=split.tolist(),
                    nodes_modes=["LEAF" if ends else str(own.choice(modes)) for ends in leaf], nodes_truenodeids=below(1), nodes_falsenodeids=below(2),
                    nodes_missing_value_tracks_true=own.integers(0, 2, len(number)).tolist(), target_treeids=tree[leaf].tolist(),
                    target_nodeids=number[leaf].tolist(), target_ids=own.integers(0, 2, int(leaf.sum())).tolist(), target_weights=own.normal(size=int(leaf.sum())).tolist()),
    ], {"x": own.choice(grid, (37, 4))}, {}, {"y": T.FLOAT})
# Experts one after another, as exporters write `index_add` of the rows that an expert has: added where their places are.
experts = []
for number, gate in enumerate(["zero", "one"]):
    name = lambda key, number=number: f"{key}_{number}"
    experts += [
        h.make_node("Equal", ["ids", gate], [name("own")]), h.make_node("NonZero", [name("own")], [name("n")]), h.make_node("Transpose", [name("n")], [name("t")], perm=[1, 0]),
        h.make_node("Gather", [name("t"), "zero"], [name("at")], axis=1), h.make_node("Gather", ["x", name("at")], [name("rows")], axis=0),
        h.make_node("MatMul", [name("rows"), name("w")], [name("wide")]), h.make_node("Relu", [name("wide")], [name("hidden")]),
        # Of the same rank, and 1 where the rows are counted.
        h.make_node("Expand", [name("hidden"), "one_row"], [name("same")]), h.make_node("Unsqueeze", [name("at"), "behind"], [name("column")]),
        h.make_node("Shape", [name("same")], [name("s")]), h.make_node("Expand", [name("column"), name("s")], [name("places")]),
        h.make_node("ScatterElements", ["none", name("places"), name("same")], [name("y")], axis=0, reduction="add"),
    ]
# A number of rows that is counted again, as torch's newer exporter writes rows that are put where a condition holds.
counted = [
    h.make_node("Cast", ["own_0"], ["ones"], to=T.INT64), h.make_node("ReduceSum", ["ones"], ["count"], keepdims=1), h.make_node("Concat", ["count", "three"], ["sizes"], axis=0),
    h.make_node("Expand", ["hidden_0", "sizes"], ["as_many"]), h.make_node("ScatterND", ["none", "t_0", "as_many"], ["put"]),
]
case("rows_of_experts_added_one_after_another", experts + counted + [h.make_node("Add", ["y_0", "y_1"], ["y"])], {"x": floats(6, 4), "ids": np.array([0, 1, 2, 0, 1, 0])}, {
    "zero": np.int64(0), "one": np.int64(1), "w_0": floats(4, 3), "w_1": floats(4, 3), "one_row": np.array([1, 3]), "behind": np.array([1]), "none": np.zeros((6, 3), "float32"),
    "three": np.array([3]),
}, {"y": T.FLOAT, "put": T.FLOAT})
# What works along an axis that is as long as data says: its weights and extremes, from its end on, products, sizes as results.
case("along_what_data_counts", [
    h.make_node("Greater", ["best", "zero"], ["holds"]), h.make_node("Compress", ["x", "holds"], ["some"], axis=0), h.make_node("Compress", ["w", "holds"], ["others"], axis=0),
    h.make_node("Softmax", ["some"], ["weights"], axis=0), h.make_node("ArgMax", ["some"], ["largest"], axis=0, keepdims=0), h.make_node("ArgMin", ["some"], ["least"], axis=0),
    h.make_node("Gather", ["some", "minus"], ["last"]), h.make_node("Unsqueeze", ["largest", "first"], ["largest_row"]), h.make_node("GatherElements", ["some", "largest_row"], ["most"], axis=0),
    h.make_node("Transpose", ["some"], ["turned"], perm=[1, 0]), h.make_node("MatMul", ["turned", "others"], ["product"]), h.make_node("Gemm", ["others", "some"], ["sum"], transA=1),
    h.make_node("Slice", ["some", "back", "far", "first", "back"], ["backwards"]), h.make_node("Slice", ["some", "two", "end", "first"], ["tail"]),
    h.make_node("CumSum", ["some", "axis"], ["rest"], reverse=1), h.make_node("Tile", ["some", "twice"], ["doubled"]), h.make_node("Pad", ["some", "borders"], ["padded"]),
    h.make_node("Shape", ["some"], ["sizes"]), h.make_node("Size", ["others"], ["size"]), h.make_node("Einsum", ["some", "others"], ["pairs"], equation="nd,ne->ed"),
], {"best": floats(7), "x": floats(7, 3)}, {
    "zero": np.float32(0), "w": floats(7, 2), "minus": np.array([-1]), "first": np.array([0]), "back": np.array([-1]), "far": np.array([-(2**31)]), "two": np.array([-2]),
    "end": np.array([2**31 - 1]), "axis": np.int64(0), "twice": np.array([2, 1]), "borders": np.array([1, 0, 2, 1]),
}, {"weights": T.FLOAT, "largest": T.INT64, "least": T.INT64, "last": T.FLOAT, "most": T.FLOAT, "product": T.FLOAT, "sum": T.FLOAT, "backwards": T.FLOAT, "tail": T.FLOAT,
    "rest": T.FLOAT, "doubled": T.FLOAT, "padded": T.FLOAT, "sizes": T.INT64, "size": T.INT64, "pairs": T.FLOAT})
case("constant_in_another_file", [
    h.make_node("Constant", [], ["w"], value=numpy_helper.from_array(np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3))),
    h.make_node("MatMul", ["x", "w"], ["y"]),
], {"x": np.linspace(-1, 2, 8, dtype="float32").reshape(2, 4)}, {}, {"y": T.FLOAT}, beside="weights.bin")


def loop(count, carried, made, nodes, constants=()):
    """A node that computes `made` of `carried` as often as a constant says."""
    value = h.make_tensor_value_info
    body = h.make_graph([*nodes, h.make_node("Identity", ["on"], ["goes_on"])], "body",
                        [value("number", T.INT64, []), value("on", T.BOOL, []), value("v", T.FLOAT, None)],
                        [value("goes_on", T.BOOL, []), value("u", T.FLOAT, None)], list(constants))
    return h.make_node("Loop", [count, "", carried], [made], name=made, body=body)


# A loop in a loop, with an initialiser and a constant in its body: the file has one of each.
case("loop_in_a_loop", [
    loop("three", "x", "y", [loop("two", "v", "u", [
        h.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.linspace(0, 1, 2000, dtype="float32"))),
        h.make_node("Mul", ["v", "w"], ["m"]), h.make_node("Add", ["m", "k"], ["s"]), h.make_node("Tanh", ["s"], ["u"]),
    ], [numpy_helper.from_array(np.linspace(-1, 2, 2000, dtype="float32"), "w")])]),
], {"x": np.linspace(-1, 1, 2000, dtype="float32")}, {"two": np.int64(2), "three": np.int64(3)}, {"y": T.FLOAT}, alone=True)
