"""The server: requests in, replies out. `service` knows no socket, `app` no dynamics."""
