// A dyn_service plant as a ros2_control system (Jazzy): each joint has the state interfaces `position`, `velocity`, `effort`, and the command
// interfaces that all joints have: `effort`, or `position`, or `position` and the `velocity` with which it goes on, or `velocity`. In the URDF:
//
//   <ros2_control name="panda" type="system">
//     <hardware>
//       <plugin>dyn_service_hardware/Plant</plugin>
//       <param name="states">tcp://127.0.0.1:7001</param>      the plant's parameter plant_state
//       <param name="commands">tcp://127.0.0.1:7002</param>    and joint_commands
//       <param name="state_timeout_ms">2000</param>
//     </hardware>
//     <joint name="panda_joint1"> <command_interface name="effort"/> <state_interface name="position"/> .. </joint>
//   </ros2_control>
//
// A floating base moves beside: it is in `odom` and `multi_dof_joint_states` of the bridge, and gets no effort here; a plant with one is commanded
// by efforts alone. Joints of the plant that the URDF does not list get no effort, stay where they were, or stand still.
// Activating arms the plant, deactivating releases it, which shuts its brakes. A plant that stops under way, or falls silent, is an error:
// the controller manager then deactivates the component. Not built or run by this project's tests, which have no ROS;
// plant_link.hpp beneath it is.

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "hardware_interface/system_interface.hpp"
#include "plant_link.hpp"
#include "pluginlib/class_list_macros.hpp"
#include "rclcpp/logging.hpp"

namespace dyn_service_hardware {

using hardware_interface::CallbackReturn;
using hardware_interface::return_type;

class Plant : public hardware_interface::SystemInterface {
public:
    CallbackReturn on_init(const hardware_interface::HardwareInfo& info) override {
        if (SystemInterface::on_init(info) != CallbackReturn::SUCCESS) return CallbackReturn::ERROR;
        for (const auto& joint : info_.joints) {
            const auto commands = names_of(joint.command_interfaces);
            if (commands != std::set<std::string>{"effort"} && commands != std::set<std::string>{"velocity"} &&
                commands != std::set<std::string>{"position"} && commands != std::set<std::string>{"position", "velocity"})
                return refuse("joint '" + joint.name + "' must have the command interfaces effort, or velocity, or position, or position and velocity");
            if (&joint != &info_.joints.front() && commands != names_of(info_.joints.front().command_interfaces))
                return refuse("joints '" + info_.joints.front().name + "' and '" + joint.name + "' must have the same command interfaces");
            for (const auto& wanted : joint.state_interfaces)
                if (wanted.name != "position" && wanted.name != "velocity" && wanted.name != "effort")
                    return refuse("joint '" + joint.name + "' has position, velocity and effort, no '" + wanted.name + "'");
        }
        if (info_.joints.empty()) return refuse("it has no joint");
        const auto commands = names_of(info_.joints.front().command_interfaces);
        interface_ = commands.count("position") ? "position" : *commands.begin();
        goes_on_ = commands.size() == 2;
        return CallbackReturn::SUCCESS;
    }

    CallbackReturn on_configure(const rclcpp_lifecycle::State&) override try {
        link_ = std::make_unique<dyn::PlantLink>(parameter("states"), parameter("commands"));
        timeout_ms_ = info_.hardware_parameters.count("state_timeout_ms") ? std::stoi(parameter("state_timeout_ms")) : 2000;
        if (!link_->receive(timeout_ms_)) return refuse("no state of the plant came from " + parameter("states") + " in time");
        if (!link_->takes(interface_)) return refuse("the plant is not commanded by " + interface_);
        const auto& names = link_->state().name;
        places_.clear(), positions_.clear();
        for (const auto& joint : info_.joints) {
            const auto at = std::find(names.begin(), names.end(), joint.name);
            if (at == names.end()) return refuse("the plant has no joint '" + joint.name + "'");
            places_.push_back(static_cast<std::size_t>(at - names.begin()));
            positions_.push_back(dyn::position_place(names, places_.back()));
        }
        heard_ = Clock::now();
        return CallbackReturn::SUCCESS;
    } catch (const std::exception& error) {
        return refuse(error.what());
    }

    CallbackReturn on_activate(const rclcpp_lifecycle::State&) override {
        const auto& state = link_->state();
        command_ = {interface_, interface_ == "position" ? state.position : std::vector<double>(state.name.size(), 0.0)};
        if (goes_on_) command_.velocity.assign(state.name.size(), 0.0);
        for (std::size_t k = 0; k < places_.size(); ++k) {
            set_command(info_.joints[k].name + "/" + interface_, command_.value[places_[k]]);
            if (goes_on_) set_command(info_.joints[k].name + "/velocity", 0.0);
        }
        link_->rearm();
        return CallbackReturn::SUCCESS;
    }

    CallbackReturn on_deactivate(const rclcpp_lifecycle::State&) override {
        link_->release();
        return CallbackReturn::SUCCESS;
    }

    return_type read(const rclcpp::Time&, const rclcpp::Duration&) override try {
        if (link_->receive(0)) {
            heard_ = Clock::now();
            const auto& state = link_->state();
            for (std::size_t k = 0; k < places_.size(); ++k) {
                for (const auto& wanted : info_.joints[k].state_interfaces) {
                    const double value = wanted.name == "velocity" ? state.velocity[places_[k]]
                                         : wanted.name == "effort" ? state.effort[places_[k]]
                                                                   : state.position[positions_[k]];
                    set_state(info_.joints[k].name + "/" + wanted.name, value);
                }
            }
        }
        if (Clock::now() - heard_ > std::chrono::milliseconds(timeout_ms_)) return fail("no state of the plant has come for " + std::to_string(timeout_ms_) + " ms");
        if (link_->stopped()) return fail("the plant stopped: " + link_->state().cause);
        return return_type::OK;
    } catch (const std::exception& error) {
        return fail(error.what());
    }

    return_type write(const rclcpp::Time&, const rclcpp::Duration&) override {
        for (std::size_t k = 0; k < places_.size(); ++k) {
            command_.value[places_[k]] = get_command(info_.joints[k].name + "/" + interface_);
            if (goes_on_) command_.velocity[places_[k]] = get_command(info_.joints[k].name + "/velocity");
        }
        link_->send(command_);
        return return_type::OK;
    }

private:
    using Clock = std::chrono::steady_clock;

    static std::set<std::string> names_of(const std::vector<hardware_interface::InterfaceInfo>& interfaces) {
        std::set<std::string> names;
        for (const auto& one : interfaces) names.insert(one.name);
        return names;
    }

    std::string parameter(const std::string& name) const {
        const auto found = info_.hardware_parameters.find(name);
        if (found == info_.hardware_parameters.end()) throw std::invalid_argument("hardware parameter '" + name + "' is missing");
        return found->second;
    }

    CallbackReturn refuse(const std::string& why) {
        RCLCPP_ERROR(get_logger(), "%s", why.c_str());
        return CallbackReturn::ERROR;
    }

    return_type fail(const std::string& why) {
        RCLCPP_ERROR(get_logger(), "%s", why.c_str());
        return return_type::ERROR;
    }

    std::unique_ptr<dyn::PlantLink> link_;
    std::string interface_;  // what is commanded
    bool goes_on_ = false;   // a commanded position goes on with a velocity
    dyn::Command command_;
    std::vector<std::size_t> places_, positions_;  // of each joint, in `name`, `velocity`, `effort`; in `position`
    int timeout_ms_ = 2000;
    Clock::time_point heard_;
};

}  // namespace dyn_service_hardware

PLUGINLIB_EXPORT_CLASS(dyn_service_hardware::Plant, hardware_interface::SystemInterface)
