"""Theano's modules: made from the table `SOURCES` when `synk.theano` is imported.

`theano.tensor.nnet.bn` and the like have no files. A name of such a module is looked up
in the module's *sources*, in order, at its first use. A source is a module of PyTensor
or Python; or, with a dot before it, one of Theano's or a file of this folder. Names
after a colon are taken from the source, as ``new=old`` if it has another name there;
without a colon, all public names except modules are.

All modules are in ``sys.modules`` from the start, so Python looks for none of them, and
a module with the name of a function, as theano.tensor.sort, never replaces it in the
package.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from importlib.machinery import ModuleSpec
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from . import gpu

OURS = "synk.theano"

_GRADIENT = ".graphs:Lop,Rop pytensor.gradient:consider_constant=zero_grad"
_SCAN = ".loops:foldl,foldr,map,reduce,scan"
_FUNCTIONS = (
    ".functions:function,pfunc,shared .compiled:In,Param"
    " pytensor.compile:Out,SharedVariable"
)
_NORMALIZATION = (
    "synk.nn:batch_normalization_test,batch_normalization_train"
    " .networks:batch_normalization"
)
_SIGMOIDS = "pytensor.tensor:sigmoid,softplus .networks:hard_sigmoid,ultra_fast_sigmoid"
_NETWORKS = (
    "synk.nn:binary_crossentropy,elu,selu,sigmoid_binary_crossentropy"
    f" {_NORMALIZATION} {_SIGMOIDS},"
    "categorical_crossentropy,confusion_matrix,crossentropy_categorical_1hot,"
    "crossentropy_softmax_1hot,crossentropy_softmax_1hot_with_bias,"
    "crossentropy_softmax_argmax_1hot_with_bias,h_softmax,logsoftmax,relu,softmax,"
    "softsign"
)
_CONVOLUTION = (
    "synk.nn:conv2d_grad_wrt_weights"
    " .convolution:bilinear_upsampling,conv2d,conv2d_grad_wrt_inputs,conv2d_transpose,"
    "conv3d"
)
_ABSTRACT = (
    ",AbstractConv2d_gradInputs,AbstractConv2d_gradWeights,AbstractConv3d_gradInputs,"
    "get_conv_output_shape"
)
_STREAM = "RandomStateSharedVariable=RandomGeneratorSharedVariable"
_VARIABLES = "col,matrix,row,scalar,tensor,tensor3,tensor4,tensor5,vector"

SOURCES = {
    "": ".functions:clone,function,shared .compiled:In,Param"
    " pytensor.compile:Out,SharedVariable"
    f" .configuration:_asarray,change_flags,config {_SCAN} .graphs:Lop,Rop,Variable"
    " .tensors:dot,sparse_grad .loops:OrderedUpdates"
    " .printing:dprint=debugprint,pp,pprint"
    " pytensor.compile:FunctionMaker,Mode,as_op,predefined_linkers,predefined_modes,"
    "predefined_optimizers pytensor.compile.builders:OpFromGraph"
    " pytensor.graph:Apply,Constant,Op,Type pytensor.gradient:grad,subgraph_grad"
    " pytensor.link.c.type:generic pytensor.scan:scan_checkpoints",
    "compat": "collections:OrderedDict,defaultdict"
    " builtins:PY3=True,ifilter=filter,imap=map,izip=zip",
    "compat.python2x": "collections:OrderedDict,defaultdict",
    "compile": f"{_FUNCTIONS} .graphs:MonitorMode pytensor.compile"
    " pytensor.compile.builders:OpFromGraph",
    "compile.builders": "pytensor.compile.builders",
    "compile.debugmode": "pytensor.compile.debugmode pytensor.compile.debug.debugmode",
    "compile.function": ".functions:function",
    "compile.function_module": "pytensor.compile pytensor.compile.executor"
    " pytensor.compile.function.types",
    "compile.io": f"{_FUNCTIONS} pytensor.compile.io",
    "compile.mode": "pytensor.compile.mode",
    "compile.monitormode": ".graphs:MonitorMode,detect_nan",
    "compile.nanguardmode": "pytensor.compile.nanguardmode"
    " pytensor.compile.debug.nanguardmode",
    "compile.ops": "pytensor.compile.ops pytensor.raise_op pytensor.tensor.shape"
    " .tensors:Rebroadcast",
    "compile.pfunc": f"{_FUNCTIONS} pytensor.compile pytensor.compile.rebuild",
    "compile.profiling": "pytensor.compile.profiling pytensor.compile.debug.profiling",
    "compile.sharedvalue": f"{_FUNCTIONS} pytensor.compile.sharedvalue",
    "configdefaults": ".configuration:config",
    "configparser": ".configuration:TheanoConfigParser=Config,change_flags,config",
    "d3viz": "pytensor.d3viz",
    "d3viz.d3viz": "pytensor.d3viz.d3viz pytensor.d3viz",
    "d3viz.formatting": "pytensor.d3viz.formatting pytensor.d3viz",
    "gof": ".graphs:Variable,ancestors,inputs,is_same_graph"
    " pytensor.graph.rewriting.basic:local_optimizer=node_rewriter"
    " pytensor.link.c.op:COp pytensor.link.c.type:CType,Generic,generic pytensor.graph"
    " pytensor.graph.basic pytensor.graph.traversal pytensor.graph.utils"
    " pytensor.graph.rewriting.basic",
    "gof.fg": "pytensor.graph.fg",
    "gof.graph": ".gof",
    "gof.op": "pytensor.graph.op pytensor.link.c.op",
    "gof.opt": ".gof",
    "gof.toolbox": "pytensor.graph.features",
    "gof.type": ".gof pytensor.graph.type pytensor.link.c.type",
    "gof.utils": "pytensor.graph.utils",
    "gradient": f"{_GRADIENT} pytensor.gradient",
    "ifelse": "pytensor.conditional.op pytensor.ifelse",
    "misc": "",
    "misc.pkl_utils": ".pickles:dump,load pytensor.misc.pkl_utils",
    "misc.safe_asarray": ".configuration:_asarray",
    "printing": ".graphs:debugprint,pydotprint pytensor.printing",
    "raise_op": "pytensor.raise_op",
    "sandbox": "",
    "sandbox.linalg": ".tensor.nlinalg .tensor.slinalg",
    "sandbox.neighbours": ".tensor.nnet.neighbours",
    "sandbox.rng_mrg": ".streams:MRG_RandomStreams",
    "scalar": "pytensor.scalar",
    "scalar.basic": "pytensor.scalar.basic pytensor.scalar",
    "scan_module": f"{_SCAN} pytensor.scan pytensor.scan.utils",
    "scan_module.scan": ".loops:scan",
    "scan_module.scan_op": "pytensor.scan.op",
    "scan_module.scan_utils": ".functions:clone pytensor.scan.utils pytensor.scan",
    "scan_module.scan_views": _SCAN,
    "sparse": "pytensor.sparse:SparseType=SparseTensorType,constant=as_sparse,sgn=sign,"
    "structured_monoid=structured_elemwise builtins:enable_sparse=True"
    " pytensor.sparse.variable:SparseConstant,SparseVariable pytensor.sparse"
    " pytensor.sparse.type",
    "sparse.basic": ".sparse pytensor.sparse.basic pytensor.sparse.math",
    "sparse.sharedvar": ".sparse pytensor.sparse.sharedvar",
    "sparse.type": ".sparse",
    "sparse.utils": "pytensor.sparse.utils",
    "tensor": f".tensors:{_VARIABLES},Rebroadcast,TensorVariable,addbroadcast,"
    "batched_dot,batched_tensordot,cast,dot,flatten,mean,patternbroadcast,repeat,"
    "reshape,stack,tile,unbroadcast pytensor.tensor:abs_=abs,inv=reciprocal"
    " .functions:shared .streams:RandomStreams .gradient:Lop,Rop,consider_constant,"
    "grad,hessian,jacobian,numeric_grad,verify_grad .graphs:Variable"
    " pytensor.tensor.exceptions:NotScalarConstantError"
    " pytensor.tensor.sharedvar:TensorSharedVariable pytensor.tensor"
    " pytensor.tensor.extra_ops pytensor.tensor.basic pytensor.tensor.math"
    " pytensor.tensor.type pytensor.tensor.subtensor pytensor.tensor.elemwise",
    "tensor.basic": ".tensor",
    "tensor.blas": "pytensor.tensor.blas",
    "tensor.elemwise": "pytensor.tensor.elemwise pytensor.tensor.math .tensor",
    "tensor.extra_ops": ".tensor",
    "tensor.fft": "pytensor.tensor.fft",
    "tensor.nlinalg": ".tensors:eigh,qr"
    " pytensor.tensor:alloc_diag=diag,diag,extract_diag,trace pytensor.tensor.linalg"
    " pytensor.tensor.nlinalg",
    "tensor.nnet": f"{_NETWORKS} {_CONVOLUTION}",
    "tensor.nnet.abstract_conv": f"{_CONVOLUTION}{_ABSTRACT}",
    "tensor.nnet.bn": _NORMALIZATION,
    "tensor.nnet.conv": ".convolution:ConvOp,conv2d=first_conv2d",
    "tensor.nnet.conv3d2d": ".convolution:conv3d=conv3d_of_time_first",
    "tensor.nnet.neighbours": "synk.nn:images2neibs,neibs2images",
    "tensor.nnet.nnet": f"{_NETWORKS} pytensor.tensor.special",
    "tensor.nnet.sigm": _SIGMOIDS,
    "tensor.opt": "pytensor.raise_op:assert_=assert_op pytensor.raise_op"
    " pytensor.tensor.shape pytensor.tensor.rewriting.basic",
    "tensor.raw_random": "pytensor.tensor.random",
    "tensor.shared_randomstreams": ".streams:RandomStreams"
    f" pytensor.tensor.random.variable:{_STREAM} pytensor.tensor.random.var:{_STREAM}",
    "tensor.sharedvar": "pytensor.tensor.sharedvar",
    "tensor.signal": "",
    "tensor.signal.conv": ".convolution:conv2d=conv2d_of_matrices",
    "tensor.signal.downsample": ".convolution:DownsampleFactorMax,"
    "max_pool_2d=pool_2d,max_pool_2d_same_size",
    "tensor.signal.pool": ".convolution:Pool,max_pool_2d_same_size,pool_2d,pool_3d",
    "tensor.slinalg": ".tensors:solve_lower_triangular,solve_upper_triangular"
    " pytensor.tensor.linalg pytensor.tensor.slinalg",
    "tensor.sort": "pytensor.tensor.sort",
    "tensor.subtensor": "pytensor.tensor.subtensor",
    "tensor.type": f".tensors:{_VARIABLES} pytensor.tensor.type",
    "tensor.utils": "pytensor.tensor.utils",
    "tensor.var": ".tensors:TensorVariable pytensor.tensor.variable"
    " pytensor.tensor.sharedvar",
    "tensor.xlogx": ".tensors:xlogx,xlogy0",
    "typed_list": "pytensor.typed_list",
    "typed_list.basic": "pytensor.typed_list.basic pytensor.typed_list",
    "updates": ".loops:OrderedUpdates",
    **dict.fromkeys(gpu.NAMES, ""),
    "sandbox.gpuarray": ".gpuarray",
    **{
        f"sandbox.{module}": f".{module}"
        for module in gpu.NAMES
        if module.startswith("gpuarray.")
    },
}
"""Module, without ``theano.`` -> where its names come from, separated by blanks."""

ABSENT = {
    "theano.compile.ProfileMode": "pass profile=True to function",
    "theano.compile.Shape_i": "use x.shape[i]",
    "theano.gradient.hessian_times_vector": "use grad of a product, or Rop of a grad",
    "theano.raise_op.Raise": "use CheckAndRaise",
    "theano.tensor.load": "use numpy.load, and synk.data for what all ranks read",
    "theano.tensor.logical_and": "use ``and_`` of booleans",
    "theano.tensor.logical_or": "use ``or_`` of booleans",
    "theano.tensor.max_pool_2d": "theano.tensor.signal.pool.pool_2d",
    "theano.tensor.nnet.blocksparse": "use indexing and batched_dot",
    "theano.tensor.nnet.separable_conv2d": "use conv2d with num_groups",
    "theano.tensor.nnet.softmax_graph": "use softmax",
    "theano.tensor.nnet.softmax_with_bias": "use softmax(x + b)",
    "theano.tensor.rint": 'use round(x, mode="half_to_even")',
    "theano.tensor.slinalg.solve_symmetric": 'use solve(a, b, assume_a="sym")',
    "theano.tensor.topk": "use sort",
}
"""Names of Theano that are missing here, and what to use instead."""


def hint(name: str) -> str:
    """Return a message for a missing name of Theano."""
    if name in ABSENT:
        return f"{name} is not part of synk's Theano: {ABSENT[name]}"
    place = name.rpartition(".")[0].replace("theano", "pytensor", 1)
    return gpu.missing(name) or (
        f"{name} is neither a name of Theano's that synk knows nor one of PyTensor's; "
        f"see {place} for what PyTensor has, and synk's page 'Theano's names'"
    )


# -- names of a module

_MISSING = object()


def make() -> None:
    """Make all modules but the package itself, which look for names at first use."""
    for name in filter(None, SOURCES):
        module = ModuleType(f"{OURS}.{name}")
        is_package = bool(_children(name))
        module.__spec__ = ModuleSpec(module.__name__, None, is_package=is_package)
        if is_package:
            module.__path__ = []
        fill(vars(module))
        sys.modules[module.__name__] = module


def fill(namespace: dict[str, Any]) -> None:
    """Fill the namespace of a module of Theano."""
    name = namespace["__name__"]
    module = name.removeprefix(OURS).removeprefix(".")
    if module in gpu.NAMES:
        namespace.update(gpu.names_in(module))

    def __getattr__(asked: str) -> Any:
        if asked == "__all__":
            return [each for each in __dir__() if not each.startswith("_")]
        full = ".".join(filter(None, ["theano", module, asked]))
        is_child = full.removeprefix("theano.") in SOURCES
        found = _MISSING if full in ABSENT else _look_up(module, asked)
        if found is _MISSING and is_child:
            return importlib.import_module(f"{name}.{asked}")
        if found is _MISSING:
            raise AttributeError(hint(full), name=asked)
        return namespace.setdefault(asked, found)

    def __dir__() -> list[str]:
        own = [n for n, value in namespace.items() if not _is_others(value)]
        return sorted({*own, *_names(module), *_children(module)})

    namespace.update(__getattr__=__getattr__, __dir__=__dir__)


def _is_others(value: Any) -> bool:
    """Return whether a value is a module, or defined outside of PyTensor and synk."""
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return str(value.__module__).partition(".")[0] not in ("pytensor", "synk")
    return isinstance(value, ModuleType)


@cache
def _sources(module: str) -> list[tuple[str, dict[str, str] | None]]:
    """Return a module's sources, each with its names (new -> old); None: all public."""
    found: list[tuple[str, dict[str, str] | None]] = []
    for source in SOURCES[module].split():
        place, _, names = source.partition(":")
        place = f"{OURS}{place}" if place.startswith(".") else place
        pairs = [name.partition("=") for name in names.split(",") if name]
        found.append((place, {new: old or new for new, _, old in pairs} or None))
    return found


def _look_up(module: str, name: str) -> Any:
    """Return a name's value from a module's sources, or `_MISSING`."""
    for place, names in _sources(module):
        there = _import(place)
        if there is None:
            continue
        if names is not None:
            old = names.get(name)
        else:
            old = name if _is_public(there, name) else None
        if old is not None and hasattr(there, old):
            return getattr(there, old)
    return _MISSING


def _names(module: str) -> set[str]:
    """Return all names that `_look_up` finds."""
    found: set[str] = set()
    for place, names in _sources(module):
        there = _import(place)
        if there is not None and names is not None:
            found |= names.keys()
        elif there is not None:
            found.update(name for name in dir(there) if _is_public(there, name))
    return found


def _is_public(there: ModuleType, name: str) -> bool:
    return not (name.startswith("_") or _is_others(getattr(there, name, None)))


def _import(place: str) -> ModuleType | None:
    """Return a module, or None if the installed PyTensor does not have it."""
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and place.startswith(error.name):
            return None
        raise


def _children(module: str) -> list[str]:
    start = f"{module}." if module else ""
    rests = [name[len(start) :] for name in SOURCES if name and name.startswith(start)]
    return [rest for rest in rests if "." not in rest]
