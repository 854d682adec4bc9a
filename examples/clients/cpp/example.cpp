// Torques that hold a robot still, the same for a batch of states, and what happens when it is asked about a NaN.
//
//   g++ -std=c++17 -O2 example.cpp -lzmq -o example && ./example [ENDPOINT [ROBOT]]

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "client.hpp"

int main(int argc, char** argv) try {
    dyn::Client client(argc > 1 ? argv[1] : "tcp://127.0.0.1:5755");
    const std::string robot = argc > 2 ? argv[2] : client.list_robots().at(0);
    const auto joints = client.describe(robot);
    const auto n = joints.size();  // of this robot each joint has one number; others have more, as describe_robot says

    std::vector<double> q(n, 0.1), still(n, 0.0);
    const auto tau = client.ask("inverse_dynamics", robot, {{"q", q}, {"v", still}, {"a", still}})["tau"];
    for (std::size_t k = 0; k < n; ++k) std::printf("%s: %.6f\n", joints[k].c_str(), tau[k]);

    const dyn::Array states(std::vector<double>(1000 * n, 0.1), {1000, n});
    const auto batch = client.ask("inverse_dynamics", robot, {{"q", states}, {"v", still}, {"a", still}})["tau"];
    bool same = true;
    for (std::size_t k = 0; k < batch.data.size(); ++k) same = same && batch[k] == tau[k % n];
    std::printf("batch of %llu: %s\n", static_cast<unsigned long long>(batch.shape.at(0)), same ? "the same bits" : "other bits");

    q[0] = std::nan("");
    try {
        client.ask("inverse_dynamics", robot, {{"q", q}, {"v", still}, {"a", still}});
    } catch (const dyn::Error& error) {
        std::printf("refused: %s %s\n", error.code.c_str(), error.what());
    }
    return 0;
} catch (const dyn::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
}
