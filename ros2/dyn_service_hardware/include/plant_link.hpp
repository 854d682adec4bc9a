// A dyn_service plant, simulated or a driver's, from C++17: its newest state, and efforts, positions or velocities for it. No ROS in here.
//
//   dyn::PlantLink link("tcp://127.0.0.1:7001", "tcp://127.0.0.1:7002");     // the plant's plant_state and joint_commands
//   if (link.receive(2000)) link.send(efforts);
//
// Messages are dyn_service_msgs/PlantState and JointCommand (docs/messages.md) as MessagePack maps; what follows a map in a frame is
// the publisher's mark. A plant that is stopped is taken over ("armed") by the first command after it is slow enough to be;
// one that stops under our commands is taken over again only after `rearm()`. See docs/safety.md.
#pragma once

#include <zmq.h>

#define MSGPACK_NO_BOOST
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <msgpack.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace dyn {

struct PlantState {
    std::int64_t session = -1, seq = -1, epoch = -1;
    double stamp = 0.0;
    std::vector<std::string> name;
    std::vector<double> position, velocity, effort;
    std::string mode, cause, fingerprint;
    bool armable = false;
    std::vector<std::string> interfaces = {"effort"};  // by what it is commanded
};

/// What is commanded, one number for each name of the state. interface: "effort" (N m | N), "position" (rad | m) or "velocity" (rad/s | m/s),
/// which `value` is; it stays the same from arming to the next stop. velocity: with which a commanded position goes on, or empty: it stays.
struct Command {
    std::string interface = "effort";
    std::vector<double> value, velocity = {};
};

/// Where in `position` the joint at `name[k]` stands. A joint with several ways to move has an entry `joint.part` in `name` for each; those
/// whose last parts are wx, wy, wz turn by a quaternion, which is one number more in `position`.
inline std::size_t position_place(const std::vector<std::string>& name, std::size_t k) {
    const auto ends = [&name](std::size_t n, const std::string& joint, const char* part) { return name[n] == joint + part; };
    std::size_t place = k;
    for (std::size_t n = 2; n < k; ++n) {
        const std::size_t stem = name[n].size() < 3 ? 0 : name[n].size() - 3;
        const std::string joint = name[n].substr(0, stem);
        place += ends(n, joint, ".wz") && ends(n - 1, joint, ".wy") && ends(n - 2, joint, ".wx");
    }
    return place;
}

class PlantLink {
public:
    static constexpr int version = 2;  // of both messages

    PlantLink(const std::string& states, const std::string& commands)
        : context_(zmq_ctx_new(), zmq_ctx_term), states_(socket(ZMQ_SUB, states)), commands_(socket(ZMQ_PUB, commands)) {
        std::random_device entropy;
        controller_ = static_cast<std::int64_t>((static_cast<std::uint64_t>(entropy()) << 21) ^ entropy()) & ((std::int64_t{1} << 53) - 1);
    }

    /// Whether a newer state has come within `timeout_ms`; `state()` is the newest.
    bool receive(int timeout_ms) {
        zmq_pollitem_t item{states_.get(), 0, ZMQ_POLLIN, 0};
        if (zmq_poll(&item, 1, timeout_ms) <= 0) return false;
        zmq_msg_t frame;
        std::unique_ptr<zmq_msg_t, int (*)(zmq_msg_t*)> owner(&frame, zmq_msg_close);
        zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, states_.get(), ZMQ_DONTWAIT) < 0) return false;
        std::size_t offset = 0;
        const auto handle = msgpack::unpack(static_cast<const char*>(zmq_msg_data(&frame)), zmq_msg_size(&frame), offset);
        const auto map = handle.get().as<std::map<std::string, msgpack::object>>();
        if (map.at("v").as<int>() != version) throw std::runtime_error("the plant speaks another version of PlantState than " + std::to_string(version));
        state_ = {map.at("session").as<std::int64_t>(), map.at("seq").as<std::int64_t>(), map.at("epoch").as<std::int64_t>(),
                  map.at("stamp").as<double>(), map.at("name").as<std::vector<std::string>>(),
                  map.at("position").as<std::vector<double>>(), map.at("velocity").as<std::vector<double>>(),
                  map.at("effort").as<std::vector<double>>(), map.at("mode").as<std::string>(), map.at("cause").as<std::string>(),
                  map.at("fingerprint").as<std::string>(), map.at("armable").as<bool>(), {"effort"}};
        if (const auto found = map.find("interfaces"); found != map.end()) state_.interfaces = found->second.as<std::vector<std::string>>();
        return true;
    }

    const PlantState& state() const { return state_; }

    /// Whether the plant follows our commands.
    bool engaged() const { return running() && session_ == state_.session && epoch_ == state_.epoch; }

    /// Whether it has stopped under our commands.
    bool stopped() const { return session_ == state_.session && !running() && epoch_ != state_.epoch; }

    /// Lets a plant that has stopped under our commands be taken over again.
    void rearm() { session_ = -1; }

    /// Whether the plant is commanded by that.
    bool takes(const std::string& interface) const {
        return std::find(state_.interfaces.begin(), state_.interfaces.end(), interface) != state_.interfaces.end();
    }

    /// A command in answer to the newest state; whether it could be sent.
    bool send(const Command& command) {
        if (state_.session < 0 || stopped()) return false;
        const bool arm = !running();
        if (arm ? !state_.armable : !engaged()) return false;  // still too fast, or another controller's
        if (arm) session_ = state_.session, epoch_ = state_.epoch;
        last_ = command;
        return put(command, arm, false);
    }

    /// Hands the plant over: it brakes.
    void release() {
        if (engaged()) put(last_, false, true);  // whatever it says, by the same interface
    }

private:
    using Socket = std::unique_ptr<void, int (*)(void*)>;

    bool running() const { return state_.mode == "active" || state_.mode == "arming"; }

    Socket socket(int kind, const std::string& endpoint) {
        Socket made(zmq_socket(context_.get(), kind), zmq_close);
        const int newest = 1, linger = 100;
        zmq_setsockopt(made.get(), ZMQ_LINGER, &linger, sizeof linger);
        zmq_setsockopt(made.get(), ZMQ_CONFLATE, &newest, sizeof newest);
        if (kind == ZMQ_SUB) zmq_setsockopt(made.get(), ZMQ_SUBSCRIBE, "", 0);
        if (zmq_connect(made.get(), endpoint.c_str()) != 0) throw std::runtime_error(endpoint + ": " + zmq_strerror(zmq_errno()));
        return made;
    }

    bool put(const Command& command, bool arm, bool release) {
        const std::size_t joints = state_.name.size();
        if (command.value.size() != joints)
            throw std::invalid_argument(std::to_string(command.value.size()) + " numbers (" + command.interface + ") for " + std::to_string(joints) + " joints");
        const bool by_effort = command.interface == "effort", by_position = command.interface == "position";
        const std::vector<double> none, zeros(joints, 0.0);
        msgpack::sbuffer buffer;
        msgpack::packer<msgpack::sbuffer> pack(buffer);
        pack.pack_map(13);
        pack.pack("session"), pack.pack(state_.session);
        pack.pack("state_seq"), pack.pack(state_.seq);
        pack.pack("epoch"), pack.pack(state_.epoch);
        pack.pack("fingerprint"), pack.pack(state_.fingerprint);
        pack.pack("controller"), pack.pack(controller_);
        pack.pack("name"), pack.pack(state_.name);
        pack.pack("interface"), pack.pack(command.interface);
        pack.pack("effort"), pack.pack(by_effort ? command.value : zeros);
        pack.pack("position"), pack.pack(by_position ? command.value : none);
        pack.pack("velocity"), pack.pack(by_effort ? none : by_position ? command.velocity : command.value);
        pack.pack("arm"), pack.pack(arm);
        pack.pack("release"), pack.pack(release);
        pack.pack("v"), pack.pack(version);
        return zmq_send(commands_.get(), buffer.data(), buffer.size(), ZMQ_DONTWAIT) >= 0;
    }

    std::unique_ptr<void, int (*)(void*)> context_;
    Socket states_, commands_;
    PlantState state_;
    Command last_;
    std::int64_t controller_ = 0, session_ = -1, epoch_ = -1;
};

}  // namespace dyn
