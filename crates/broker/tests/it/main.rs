//! The broker over sockets, on a real log in a folder of its own.
