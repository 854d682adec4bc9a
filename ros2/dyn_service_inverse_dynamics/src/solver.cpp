// Torques, inertia matrix, Coriolis and gravity vectors from a dyn_service server, as a plug-in of inverse_dynamics_solver.
//
// Parameters, in the namespace that `initialize` is given: `endpoint` (tcp://127.0.0.1:5755), `robot` (empty: the server's first),
// `joints` (empty: the server's order; else the joints in the order of the vectors here), `timeout_ms` (1000).
//
// Not built or run by this project's tests, which have no ROS; the client beneath it, client.hpp, is.

#include <algorithm>
#include <memory>
#include <mutex>
#include <pluginlib/class_list_macros.hpp>
#include <rclcpp/parameter.hpp>
#include <string>
#include <vector>

#include "client.hpp"
#include "inverse_dynamics_solver/inverse_dynamics_solver.hpp"

namespace dyn_service_inverse_dynamics {

using Eigen::MatrixXd;
using Eigen::VectorXd;

class Solver : public inverse_dynamics_solver::InverseDynamicsSolver {
public:
    void initialize(rclcpp::node_interfaces::NodeParametersInterface::ConstSharedPtr parameters, const std::string& space, const std::string&) override {
        const auto value = [&](const std::string& name, const rclcpp::ParameterValue& otherwise) {
            const auto full = space.empty() ? name : space + "." + name;
            rclcpp::Parameter found;
            return parameters && parameters->get_parameter(full, found) ? found.get_parameter_value() : otherwise;
        };
        const auto endpoint = value("endpoint", rclcpp::ParameterValue("tcp://127.0.0.1:5755")).get<std::string>();
        const auto timeout = value("timeout_ms", rclcpp::ParameterValue(1000)).get<int>();
        client_ = std::make_unique<dyn::Client>(endpoint, timeout);
        robot_ = value("robot", rclcpp::ParameterValue("")).get<std::string>();
        if (robot_.empty()) robot_ = client_->list_robots().at(0);
        const auto known = client_->describe(robot_);
        const auto joints = value("joints", rclcpp::ParameterValue(known)).get<std::vector<std::string>>();
        if (joints.size() != known.size())
            throw std::invalid_argument("joints names " + std::to_string(joints.size()) + " joints, the server's robot '" + robot_ + "' has " + std::to_string(known.size()));
        for (const auto& name : joints) {
            const auto at = std::find(known.begin(), known.end(), name);
            if (at == known.end()) throw std::invalid_argument("the server's robot '" + robot_ + "' has no joint '" + name + "'");
            places_.push_back(at - known.begin());
        }
    }

    MatrixXd getInertiaMatrix(const VectorXd& q) const override {
        const auto n = static_cast<Eigen::Index>(places_.size());
        const auto found = ask("mass_matrix", {{"q", there(q)}}, "mass_matrix");
        MatrixXd back(n, n);
        for (Eigen::Index i = 0; i < n; ++i)
            for (Eigen::Index j = 0; j < n; ++j) back(i, j) = found[places_[i] * n + places_[j]];
        return back;
    }

    // The terms are those of the links alone; what joints do by themselves, but for their armature, is the friction vector.

    VectorXd getCoriolisVector(const VectorXd& q, const VectorXd& v) const override {
        return here(ask("bias_forces", {{"q", there(q)}, {"v", there(v)}, {"gravity", weightless_}}, "forces", {{"passive", false}}));
    }

    VectorXd getGravityVector(const VectorXd& q) const override {
        return here(ask("gravity_forces", {{"q", there(q)}}, "forces", {{"passive", false}}));
    }

    VectorXd getFrictionVector(const VectorXd& v) const override {
        const auto bias = [&](const VectorXd& at, bool passive) {  // damping and friction are the same at every q
            const std::vector<double> q(places_.size(), 0.0);
            return here(ask("bias_forces", {{"q", q}, {"v", there(at)}, {"gravity", weightless_}}, "forces", {{"passive", passive}}));
        };
        const VectorXd still = VectorXd::Zero(v.size());  // at which springs, which act there too, are taken off
        return bias(v, true) - bias(v, false) - bias(still, true);
    }

    VectorXd getTorques(const VectorXd& q, const VectorXd& v, const VectorXd& a) const override {
        return here(ask("inverse_dynamics", {{"q", there(q)}, {"v", there(v)}, {"a", there(a)}}, "tau"));  // one question for all terms
    }

private:
    dyn::Array ask(const std::string& query, const dyn::Inputs& inputs, const std::string& output, const dyn::Options& options = {}) const {
        const std::lock_guard<std::mutex> alone(turn_);  // its socket is one thread's at a time
        return client_->ask(query, robot_, inputs, options).at(output);
    }

    std::vector<double> there(const VectorXd& values) const {
        std::vector<double> found(places_.size());
        for (std::size_t k = 0; k < places_.size(); ++k) found[places_[k]] = values(static_cast<Eigen::Index>(k));
        return found;
    }

    VectorXd here(const dyn::Array& values) const {
        VectorXd found(places_.size());
        for (std::size_t k = 0; k < places_.size(); ++k) found(static_cast<Eigen::Index>(k)) = values[places_[k]];
        return found;
    }

    const std::vector<double> weightless_{0.0, 0.0, 0.0};
    std::unique_ptr<dyn::Client> client_;
    std::string robot_;
    std::vector<std::size_t> places_;
    mutable std::mutex turn_;
};

}  // namespace dyn_service_inverse_dynamics

PLUGINLIB_EXPORT_CLASS(dyn_service_inverse_dynamics::Solver, inverse_dynamics_solver::InverseDynamicsSolver)
