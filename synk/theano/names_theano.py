"""Names of `theano` itself: functions, options, loops, gradients, printing, graphs."""

from .names_section import Section

SECTIONS = [
    Section(
        "Theano",
        "theano",
        same="Apply Constant FunctionMaker Mode Op OpFromGraph Out SharedVariable "
        "Type as_op grad pp pprint predefined_linkers predefined_modes "
        "predefined_optimizers subgraph_grad",
        mapped={
            "clone": "graph.replace.clone_replace",
            "dot": "tensor.dot",
            "dprint": "printing.debugprint",
            "foldl foldr map reduce scan scan_checkpoints": "returns updates as well",
            "function": "Theano's modes; outputs may be a dict",
            "In": "may have a value, and an update of it",
            "generic": "link.c.type.generic",
            "Lop": "pullback",
            "Rop": "pushforward",
            "shared": "takes broadcastable",
            "sparse_grad": "a dense gradient where PyTensor has no other",
            "Variable": "may be made of a type alone",
            "OrderedUpdates": "a dict where PyTensor has it no more",
        },
        written={
            "config": "PyTensor's options and those of Theano's that are gone",
            "change_flags": "sets options for a while",
            "Param": "In, with its old arguments",
            "gpuarray": "not activated: graphs run on GPUs in JAX mode",
        },
        absent={
            "ProfileStats": "pass profile=True to function",
            "version": "use theano.__version__",
            "test": "tests are PyTensor's",
        },
        at="pytensor pytensor.graph pytensor.compile pytensor.compile.builders "
        "pytensor.printing pytensor.gradient",
    ),
    Section(
        "Options",
        "theano.config",
        same="allow_gc cast_policy compiledir cxx exception_verbosity floatX linker "
        "mode on_unused_input openmp optimizer optimizer_excluding "
        "optimizer_including profile warn_float64 on_opt_error",
        written={
            "change_flags": "the same as theano.change_flags",
            "device": "cpu; synk.fork says which devices are used",
            "force_device init_gpu_device print_active_device "
            "assert_no_cpu_op nocleanup compute_test_value "
            "reoptimize_unpickled_function int_division": "read and set only",
            "numpy": "read and set only; numpy.seterr sets how NumPy treats errors",
        },
        at="pytensor.config",
    ),
    Section(
        "Compilation",
        "theano.compile",
        same="FunctionMaker Mode OpFromGraph Out SharedVariable SymbolicInput "
        "SymbolicOutput UnusedInputError ViewOp as_op predefined_linkers "
        "predefined_modes predefined_optimizers register_linker register_mode "
        "register_optimizer shared_constructor view_op get_mode get_default_mode "
        "DeepCopyOp FromFunctionOp deep_copy_op optdb",
        mapped={
            "function": "as theano.function",
            "In": "may have a value, and an update of it",
            "MonitorMode": "functions may take three arguments",
            "pfunc": "function, which calls its inputs params",
            "shared": "takes broadcastable",
        },
        written={"Param": "In, with its old arguments"},
        absent={
            "ProfileMode": "pass profile=True to function",
            "Module Method Member": "Theano's modules ended with version 0.7",
            "Shape_i": "use x.shape[i]",
        },
        at="pytensor.compile pytensor.compile.builders",
    ),
    Section(
        "Compilation: modes that check",
        "theano.compile.debugmode",
        same="DebugMode BadViewMap BadDestroyMap BadThunkOutput InvalidValueError",
        at="pytensor.compile.debugmode pytensor.compile.debug.debugmode",
    ),
    Section(
        "Compilation: NaN",
        "theano.compile.nanguardmode",
        same="NanGuardMode",
        at="pytensor.compile.nanguardmode pytensor.compile.debug.nanguardmode",
    ),
    Section(
        "Compilation: watching",
        "theano.compile.monitormode",
        mapped={"MonitorMode": "functions may take three arguments"},
        written={"detect_nan": "prints a node that has computed NaN"},
    ),
    Section(
        "Files of objects",
        "theano.misc.pkl_utils",
        same="StripPickler",
        written={"dump load": "zip files, whose arrays numpy.load reads"},
        at="pytensor.misc.pkl_utils",
    ),
    Section(
        "Errors in graphs",
        "theano.raise_op",
        mapped={"Raise": "CheckAndRaise that always does"},
    ),
    Section(
        "Loops",
        "theano.scan_module",
        same="until",
        mapped={
            "foldl foldr map reduce scan scan_checkpoints": "returns updates as well"
        },
        absent={"hessian": "use theano.gradient.hessian"},
        at="pytensor.scan",
    ),
    Section(
        "Conditions",
        "theano.ifelse",
        same="IfElse ifelse",
        at="pytensor.ifelse",
    ),
    Section(
        "Gradients",
        "theano.gradient",
        same="DisconnectedInputError DisconnectedType GradClip GradScale "
        "NullTypeGradError ZeroGrad disconnected_grad grad grad_clip "
        "grad_not_implemented grad_scale grad_undefined hessian jacobian "
        "numeric_grad subgraph_grad undefined_grad zero_grad DisconnectedGrad "
        "UndefinedGrad GradientError as_list_or_tuple",
        mapped={
            "consider_constant": "zero_grad",
            "Lop": "pullback",
            "Rop": "pushforward",
            "verify_grad": "rng may be left out",
        },
        written={"hessian_times_vector": "by Rop or by a second gradient"},
        absent={
            "format_as": "use as_list_or_tuple",
        },
        at="pytensor.gradient",
    ),
    Section(
        "Printing",
        "theano.printing",
        same="Print min_informative_str pp pprint",
        mapped={"debugprint": "takes ids", "pydotprint": "takes all functions"},
        absent={"pydotprint_variables": "use pydotprint"},
        at="pytensor.printing",
    ),
    Section(
        "Graphs",
        "theano.gof",
        same="Apply Constant FunctionGraph Op Type Generic generic CType COp "
        "MethodNotDefined graph_inputs io_toposort",
        mapped={
            "Variable": "may be made of a type alone",
            "local_optimizer": "node_rewriter",
        },
        written={
            "ancestors inputs": "a list, in Theano's order: depth first, from the left",
            "is_same_graph": "",
        },
        absent={
            "Optimizer LocalOptimizer": "GraphRewriter, NodeRewriter of pytensor",
            "PatternSub OpSub OpRemove": "see pytensor.graph.rewriting.basic",
            "EquilibriumOptimizer": "EquilibriumGraphRewriter of pytensor",
            "Query": "RewriteDatabaseQuery of pytensor",
            "PureOp": "use Op",
        },
        at="pytensor.graph pytensor.graph.traversal pytensor.graph.utils "
        "pytensor.graph.rewriting.utils "
        "pytensor.link.c.op pytensor.link.c.type",
    ),
]
