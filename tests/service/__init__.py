"""The wire, the server and the clients, held against the robot in this process. Everything stays on this machine."""
