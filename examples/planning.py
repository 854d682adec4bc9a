"""Plans of the examples: ipopt solves a problem with exported functions and with CasADi's own expressions."""

from time import perf_counter

import casadi as ca
import numpy as np


def solved(name, x, residual, g, start, *, gauss_newton=True, **bounds):
    """Returns the x with least |residual|^2, ipopt's objective in each iteration, and the seconds that it took.

    The Hessian is J^T J of the residual, by first derivatives, or is estimated by ipopt.
    """
    options = {"ipopt.print_level": 0, "print_time": False, "ipopt.sb": "yes"}
    if gauss_newton:
        J, lam_f, lam_g = ca.jacobian(residual, x), ca.MX.sym("lam_f"), ca.MX.sym("lam_g", g.sparsity())
        hessian = ca.triu(2 * lam_f * (J.T @ J))
        options["hess_lag"] = ca.Function("hessian", [x, ca.MX(0, 1), lam_f, lam_g], [hessian])
    else:
        options["ipopt.hessian_approximation"] = "limited-memory"
    solver = ca.nlpsol(name, "ipopt", {"x": x, "f": ca.sumsqr(residual), "g": g}, options)
    start_s = perf_counter()
    answer = solver(x0=start, **bounds)
    seconds = perf_counter() - start_s
    assert solver.stats()["success"], solver.stats()["return_status"]
    return np.array(answer["x"]).ravel(), np.array(solver.stats()["iterations"]["obj"]), seconds


def compare(results):
    """Prints the results by name.

    Asserts that the first two need the same number of iterations and that their costs differ by less than 1e-9 of the
    largest.
    """
    for name, (_, objective, seconds) in results.items():
        print(f"{name:>13}: {len(objective)} iterations, cost {objective[-1]:.9f}, {seconds:.3f} s")
    (x, first, _), (y, second, _) = list(results.values())[:2]
    same = min(len(first), len(second))
    costs = np.abs(first[:same] - second[:same]).max() / np.abs(second[:same]).max()
    assert len(first) == len(second), "the numbers of iterations differ"
    assert costs < 1e-9, f"costs differ by {costs:.1e}"
    print(f"differences: cost of the first {same} iterations {costs:.1e}, solution {np.abs(x - y).max():.1e}")
