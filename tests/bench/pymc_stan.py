"""Stan beside synk: ``python tests/bench/pymc_stan.py``, with httpstan installed.

A logistic regression, as users of Stan write it for several cores: with `reduce_sum`.
httpstan has Stan's compiler and its headers; what evaluates the log-density and its
gradient is a small program around what these make of the model. It takes turns with the
ways of ``pymc_models.py``, and once more with one thread: so it is seen what Stan gains
by the cores. Building it takes half a minute.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

MODEL = """
functions {
  real of_rows_lpmf(array[] int seen, int first, int last, matrix x, vector slopes) {
    return bernoulli_logit_glm_lupmf(seen | x[first:last], 0, slopes);
  }
}
data {
  int rows, columns;
  matrix[rows, columns] x;
  array[rows] int<lower=0, upper=1> y;
}
parameters { vector[columns] slopes; }
model {
  slopes ~ std_normal();
  target += reduce_sum(of_rows_lupmf, y, GRAIN, x, slopes);
}
"""

PROGRAM = """
#include "model.hpp"
#include <stan/io/array_var_context.hpp>
#include <stan/model/log_prob_grad.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>

// PROGRAM DATA ROWS COLUMNS SECONDS: y, x by columns and the point, all as doubles.
int main(int argc, char** argv) {
  const size_t rows = std::stoul(argv[2]), columns = std::stoul(argv[3]);
  const double turn = std::stod(argv[4]);
  std::vector<double> given(rows * (columns + 1) + columns);
  std::ifstream file(argv[1], std::ios::binary);
  file.read(reinterpret_cast<char*>(given.data()), given.size() * sizeof(double));
  const auto end_of_y = given.begin() + rows, end_of_x = end_of_y + rows * columns;
  std::vector<double> x(end_of_y, end_of_x);
  std::vector<int> whole{int(rows), int(columns)};
  whole.insert(whole.end(), given.begin(), end_of_y);
  using Sizes = std::vector<size_t>;
  stan::io::array_var_context data({"x"}, x, {Sizes{rows, columns}},
                                   {"rows", "columns", "y"}, whole,
                                   {Sizes{}, Sizes{}, Sizes{rows}});
  stan::math::init_threadpool_tbb();  // STAN_NUM_THREADS
  stan_model model(data, 0, &std::cerr);
  std::vector<double> point(end_of_x, given.end()), gradient;
  std::vector<int> none;
  const auto compute = [&] {
    return stan::model::log_prob_grad<false, true>(model, point, none, gradient);
  };
  const double value = compute();
  double sum = 0;
  for (double each : gradient) sum += each;
  for (int i = 0; i < 3; ++i) compute();
  std::printf("[%.17g, %.17g]\\n", value, sum);
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<double> taken;
    using Clock = std::chrono::steady_clock;
    const auto since = [](Clock::time_point at) {
      return std::chrono::duration<double>(Clock::now() - at).count();
    };
    const auto begun = Clock::now();
    while (since(begun) < turn || taken.size() < 3) {
      const auto at = Clock::now();
      compute();
      taken.push_back(since(at));
    }
    std::sort(taken.begin(), taken.end());
    std::printf("%.9g\\n", taken[taken.size() / 2]);
    std::fflush(stdout);
  }
}
"""


def built(folder: Path, grain: int) -> Path:
    """Return a program that evaluates the model."""
    import httpstan
    from httpstan.compile import compile as translated

    package = Path(httpstan.__file__).parent
    code, _ = translated(MODEL.replace("GRAIN", str(grain)), "logistic_model")
    (folder / "model.hpp").write_text(code)
    (folder / "main.cpp").write_text(PROGRAM)
    words = ["g++", "-O3", "-march=native", "-std=c++17", "-w", "-DSTAN_THREADS"]
    words += ["-D_REENTRANT", "-DBOOST_DISABLE_ASSERTS"]
    words += ["-DBOOST_PHOENIX_NO_VARIADIC_EXPRESSION", f"-I{package}/include"]
    words += [f"-I{folder}", "main.cpp", "-o", "model", f"-L{package}/lib", "-ltbb"]
    subprocess.run([*words, f"-Wl,-rpath,{package}/lib"], cwd=folder, check=True)
    return folder / "model"


def write(path: Path, rows: int, columns: int) -> None:
    """Write the data of ``pymc_models.build("logistic", rows)`` to a file."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns))
    rng.normal(size=columns), rng.integers(0, 500, rows)
    y = rng.random(rows) < 0.5
    point = np.full(columns, 0.05)
    with path.open("wb") as file:
        for each in (y.astype(float), x.T, point):
            file.write(np.ascontiguousarray(each).tobytes())


def main() -> None:
    """Build, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--grain", type=int, default=0, help="rows at a time")
    parser.add_argument("--python", default=sys.executable, help="that has PyMC")
    args = parser.parse_args()
    columns, cores = 20, len(os.sched_getaffinity(0))
    grain = args.grain or -(-args.rows // cores)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "data", args.rows, columns)
        program = built(folder, grain)
        models = Path(__file__).with_name("pymc_models.py")
        command = [args.python, models, "--only", "logistic", "--rows", args.rows]
        for threads in (cores, 1):
            words = f"{program} {folder / 'data'} {args.rows} {columns} 0.3"
            of_threads = f"env STAN_NUM_THREADS={threads} {words}"
            command += ["--beside", f"Stan x{threads}={of_threads}"]
        subprocess.run(list(map(str, command)), check=True)


if __name__ == "__main__":
    main()
