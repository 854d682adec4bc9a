// Takes a plant over, commands it for a second of its time, hands it over again. Without ROS.
//
//   g++ -std=c++17 -I../include take_over.cpp -lzmq -o take_over && ./take_over STATES COMMANDS [effort | position | velocity]
//
// Efforts are 0; positions are 0.01 rad | m beyond where it stood; velocities 0.1 rad/s | m/s.

#include <cstdio>

#include "plant_link.hpp"

int main(int argc, char** argv) {
    if (argc != 3 && argc != 4) return 2;
    dyn::PlantLink link(argv[1], argv[2]);
    dyn::Command command{argc == 4 ? argv[3] : "effort", {}};
    int answered = 0;
    double from = -1.0;
    while (from < 0.0 || link.state().stamp < from + 1.0) {
        if (!link.receive(10000)) return std::puts("no state came"), 1;
        const auto& state = link.state();
        if (dyn::position_place(state.name, state.name.size()) != state.position.size()) return std::puts("positions are not where they should be"), 1;
        if (link.stopped()) return std::printf("stopped: %s\n", link.state().cause.c_str()), 1;
        if (!link.takes(command.interface)) return std::printf("not commanded by %s\n", command.interface.c_str()), 1;
        if (command.value.empty()) {
            command.value = command.interface == "position" ? state.position : std::vector<double>(state.name.size(), 0.0);
            if (command.interface != "effort")
                for (double& value : command.value) value += command.interface == "position" ? 0.01 : 0.1;
        }
        answered += link.send(command);
        if (link.state().mode == "active" && from < 0.0) from = link.state().stamp;
    }
    const std::size_t last = link.state().name.size() - 1;
    std::printf("%s at %.6f, moving at %.3f: active, %s\n", link.state().name.at(last).c_str(),
                link.state().position.at(dyn::position_place(link.state().name, last)), link.state().velocity.at(last), answered > 100 ? "commanded" : "hardly commanded");
    link.release();
    while (link.engaged())
        if (!link.receive(10000)) return std::puts("no state came"), 1;
    std::printf("%s (%s)\n", link.state().mode.c_str(), link.state().cause.c_str());
}
