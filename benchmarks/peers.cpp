// Pinocchio's C++ algorithms over a batch of states, on one thread; peers.py compiles it, and derivatives.py too.

#include <pinocchio/algorithm/aba-derivatives.hpp>
#include <pinocchio/algorithm/aba.hpp>
#include <pinocchio/algorithm/crba.hpp>
#include <pinocchio/algorithm/rnea-derivatives.hpp>
#include <pinocchio/algorithm/rnea.hpp>
#include <pinocchio/serialization.hpp>

#include <string>

namespace {
struct Robot {
  pinocchio::Model model;
  pinocchio::Data data;
  explicit Robot(const std::string& file) {
    pinocchio::serialization::loadFromBinary(model, file);
    data = pinocchio::Data(model);
  }
};
}  // namespace

// file: a model, saved by the Python bindings.
extern "C" void* load(const char* file) { return new Robot(file); }

// query: 0 inverse dynamics, 1 forward dynamics, 2 mass matrix, 3 derivatives of 0, 4 derivatives of 1; those of a state
// stay in Pinocchio's own matrices until the next. Arrays are (states, nq), (states, nv) or (states, nv, nv).
extern "C" void run(void* handle, int query, long states, const double* q, const double* v, const double* x,
                    double* out) {
  auto& [model, data] = *static_cast<Robot*>(handle);
  const long n = model.nv;
  for (long k = 0; k < states; ++k) {
    Eigen::Map<const Eigen::VectorXd> qk(q + k * model.nq, model.nq), vk(v + k * n, n), xk(x + k * n, n);
    if (query == 0) {
      Eigen::Map<Eigen::VectorXd>(out + k * n, n) = pinocchio::rnea(model, data, qk, vk, xk);
    } else if (query == 1) {
      Eigen::Map<Eigen::VectorXd>(out + k * n, n) = pinocchio::aba(model, data, qk, vk, xk);
    } else if (query == 3) {
      pinocchio::computeRNEADerivatives(model, data, qk, vk, xk);
    } else if (query == 4) {
      pinocchio::computeABADerivatives(model, data, qk, vk, xk);
    } else {
      pinocchio::crba(model, data, qk);
      Eigen::Map<Eigen::MatrixXd> M(out + k * n * n, n, n);
      M = data.M;
      M.triangularView<Eigen::StrictlyLower>() = M.transpose().triangularView<Eigen::StrictlyLower>();
    }
  }
}
