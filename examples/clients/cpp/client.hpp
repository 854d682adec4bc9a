// A client of dyn_service in C++17, written from docs/protocol.md: one DEALER socket, one MessagePack map each way.
//
//   dyn::Client client("tcp://127.0.0.1:5755");
//   client.describe("panda");
//   auto tau = client.ask("inverse_dynamics", "panda", {{"q", q}, {"v", v}, {"a", a}})["tau"];   // dyn::Array
//
// It needs libzmq (zmq.h) and msgpack-cxx, which is headers only. One question at a time, from one thread.
#pragma once

#include <zmq.h>

#define MSGPACK_NO_BOOST
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <msgpack.hpp>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace dyn {

static_assert(sizeof(double) == 8, "arrays on the wire are 64-bit floats");
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "arrays on the wire are little-endian: swap their bytes here"
#endif

/// Numbers in C order and their shape; of a plain list of numbers the shape is its length.
struct Array {
    std::vector<double> data;
    std::vector<std::uint64_t> shape;

    Array() = default;
    Array(std::vector<double> numbers) : data(std::move(numbers)), shape{data.size()} {}
    Array(std::vector<double> numbers, std::vector<std::uint64_t> axes) : data(std::move(numbers)), shape(std::move(axes)) {
        const auto entries = std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
        if (entries != data.size())
            throw std::invalid_argument("shape is of " + std::to_string(entries) + " numbers, there are " + std::to_string(data.size()));
    }
    double operator[](std::size_t k) const { return data.at(k); }
};

using Inputs = std::map<std::string, Array>;
using Outputs = std::map<std::string, Array>;
using Options = std::map<std::string, bool>;  ///< those that are yes or no, such as `passive`

/// An error that the server answered, or that no answer came (UNAVAILABLE): decide by `code`, show `what()`.
class Error : public std::runtime_error {
public:
    Error(std::string code, const std::string& message, std::string path = "")
        : std::runtime_error(path.empty() ? message : path + ": " + message), code(std::move(code)), path(std::move(path)) {}
    const std::string code;
    const std::string path;
};

class Client {
public:
    explicit Client(std::string endpoint, int timeout_ms = 1000, int compile_wait_ms = 60000)
        : endpoint_(std::move(endpoint)), timeout_ms_(timeout_ms), compile_wait_ms_(compile_wait_ms),
          next_id_(std::random_device{}()), context_(zmq_ctx_new(), zmq_ctx_term), socket_(zmq_socket(context_.get(), ZMQ_DEALER), zmq_close) {
        set(ZMQ_IMMEDIATE, 1);  // nothing waits for a server that is not there
        set(ZMQ_LINGER, 0);
        set(ZMQ_SNDTIMEO, timeout_ms_);
        set(ZMQ_HEARTBEAT_IVL, 2000);
        set(ZMQ_HEARTBEAT_TIMEOUT, 6000);
        if (zmq_connect(socket_.get(), endpoint_.c_str()) != 0)
            throw Error("INVALID_ARGUMENT", "endpoint " + endpoint_ + ": " + zmq_strerror(zmq_errno()));
    }

    /// The names of the robots that are served.
    std::vector<std::string> list_robots() { return at(request("list_robots", ""), "robots").as<std::vector<std::string>>(); }

    /// Names of the movable joints, in the order of q; from now on questions name the robot's fingerprint.
    std::vector<std::string> describe(const std::string& robot) {
        const auto description = request("describe_robot", robot);
        models_[robot] = at(description, "fingerprint").as<std::string>();
        return at(description, "joint_names").as<std::vector<std::string>>();
    }

    /// Outputs that are arrays, by name.
    Outputs ask(const std::string& query, const std::string& robot, const Inputs& inputs, const Options& options = {}) {
        Outputs outputs;
        const auto answered = request(query, robot, inputs, options);
        for (const auto& [name, value] : answered.as<std::map<std::string, msgpack::object>>())
            if (value.type == msgpack::type::MAP) outputs[name] = unpacked(value);
        return outputs;
    }

private:
    using Clock = std::chrono::steady_clock;

    msgpack::object request(const std::string& query, const std::string& robot, const Inputs& inputs = {}, const Options& options = {}) {
        const auto id = next_id_++;
        const auto message = packed(id, query, robot, inputs, options);
        if (zmq_send(socket_.get(), message.data(), message.size(), 0) < 0)
            throw silent("no server took the request at ");
        // the server's own DEADLINE_EXCEEDED says more than ours: it is given a little time to arrive
        auto until = Clock::now() + std::chrono::milliseconds(timeout_ms_ + 100);
        for (;;) {
            const auto reply = receive(until);
            const auto keys = reply.as<std::map<std::string, msgpack::object>>();
            const auto answered = keys.find("id");
            if (answered == keys.end() || answered->second.type != msgpack::type::POSITIVE_INTEGER || answered->second.as<std::uint64_t>() != id)
                continue;  // the late reply to a question that was given up
            if (keys.count("notice")) {  // the server compiles: its deadline is extended, and so is ours
                until = Clock::now() + std::chrono::milliseconds(compile_wait_ms_);
                continue;
            }
            if (keys.at("ok").as<bool>()) return keys.at("outputs");
            const auto error = keys.at("error").as<std::map<std::string, msgpack::object>>();
            const auto path = error.find("path");
            throw Error(error.at("code").as<std::string>(), error.at("message").as<std::string>(),
                        path == error.end() || path->second.is_nil() ? "" : path->second.as<std::string>());
        }
    }

    std::string packed(std::uint64_t id, const std::string& query, const std::string& robot, const Inputs& inputs,
                       const Options& options) const {
        msgpack::sbuffer buffer;
        msgpack::packer<msgpack::sbuffer> pack(buffer);
        const auto model = models_.find(robot);
        pack.pack_map(8 + (model != models_.end()));
        pack.pack("v"), pack.pack(1);
        pack.pack("id"), pack.pack(id);
        pack.pack("query"), pack.pack(query);
        pack.pack("robot");
        if (robot.empty()) pack.pack_nil(); else pack.pack(robot);
        pack.pack("deadline_ms"), pack.pack(timeout_ms_);
        pack.pack("compile_wait_ms"), pack.pack(compile_wait_ms_);
        if (model != models_.end()) pack.pack("model"), pack.pack(model->second);
        pack.pack("options"), pack.pack(options);
        pack.pack("inputs");
        pack.pack_map(static_cast<std::uint32_t>(inputs.size()));
        for (const auto& [name, array] : inputs) {
            const auto bytes = static_cast<std::uint32_t>(8 * array.data.size());
            pack.pack(name);
            pack.pack_map(3);
            pack.pack("dtype"), pack.pack("<f8");
            pack.pack("shape"), pack.pack(array.shape);
            pack.pack("data"), pack.pack_bin(bytes), pack.pack_bin_body(reinterpret_cast<const char*>(array.data.data()), bytes);
        }
        return {buffer.data(), buffer.size()};
    }

    msgpack::object receive(Clock::time_point until) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
        set(ZMQ_RCVTIMEO, static_cast<int>(std::max<long long>(left, 0)));
        std::unique_ptr<zmq_msg_t, int (*)(zmq_msg_t*)> frame(&frame_, zmq_msg_close);
        zmq_msg_init(&frame_);
        if (zmq_msg_recv(&frame_, socket_.get(), 0) < 0)
            throw silent("no answer came from ");
        reply_ = msgpack::unpack(static_cast<const char*>(zmq_msg_data(&frame_)), zmq_msg_size(&frame_));
        return reply_.get();
    }

    Error silent(const std::string& what) const {
        const auto why = zmq_errno() == EAGAIN ? " in time" : std::string(": ") + zmq_strerror(zmq_errno());
        return {"UNAVAILABLE", what + endpoint_ + why};
    }

    static Array unpacked(const msgpack::object& value) {
        const auto map = value.as<std::map<std::string, msgpack::object>>();
        const auto bytes = map.at("data").as<std::vector<char>>();
        std::vector<double> numbers(bytes.size() / 8);
        std::memcpy(numbers.data(), bytes.data(), 8 * numbers.size());
        return {std::move(numbers), map.at("shape").as<std::vector<std::uint64_t>>()};
    }

    static msgpack::object at(const msgpack::object& map, const std::string& key) {
        return map.as<std::map<std::string, msgpack::object>>().at(key);
    }

    void set(int option, int value) { zmq_setsockopt(socket_.get(), option, &value, sizeof value); }

    std::string endpoint_;
    int timeout_ms_, compile_wait_ms_;
    std::uint64_t next_id_;
    std::map<std::string, std::string> models_;
    std::unique_ptr<void, int (*)(void*)> context_, socket_;
    zmq_msg_t frame_{};
    msgpack::object_handle reply_;  // holds what the objects of the last reply point to
};

}  // namespace dyn
