"""Other implementations of ZMTP at our servers and clients: `python -m qa.interop`.

Each library has a program in `peers/` with the same three roles. Keys are `PUBLIC SECRET SERVER` for a client, `PUBLIC
SECRET` for a server, in Z85; without keys the mechanism is NULL. Each prints `ready` when its sockets are open.

    client ENDPOINT DEALER|REQ HEARTBEAT_MS [KEYS]   reads lines `REQUEST_FILE REPLY_FILE`: sends the content of the
                                                     first as a message, writes the reply to the second, prints `done`
    echo ENDPOINT [KEYS]                             a ROUTER that returns each message
    relay ENDPOINT SERVER [KEYS]                     a ROUTER that passes each message of the last client to a server by
                                                     a DEALER, and its replies back

libraries  builds the programs, or states why a library is absent
programs   runs them
cases      what is checked with each library
wire       `zmtp` over plain sockets, the smallest client and server of it
service    our server as a process that is killed and started again
"""
