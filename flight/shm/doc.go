// Package shm shares memory with clients on the server's node, so that the bytes of
// blobs need not go through a socket.
//
// A client connects to a unix socket. It and the server prove to each other who they are, and it is given a [Ring]: a
// piece of memory of its own, which it maps and can only read. The socket's end is the ring's end; its memory counts
// until the kernel has it back, which is when no process has a descriptor or a mapping of it any more. Calls come by
// Flight as ever and name the ring; the server then puts the large buffers of a record
// batch into it, one copy, and says in the batch's metadata where they lie. By the socket
// the client says what it has taken and what it has let go of. A slot is written again
// only after that.
//
// No file of the server's is handed out, and nobody else's memory: a client can
// reach the bytes that it was sent and no others. With Options.References it is otherwise: a
// slot may then refer to blobs in files of the server's, which the client is handed for
// reading. The slot holds them until it is free.
//
// Here live the socket, the rings and their bookkeeping, and the [Sideband] of a call, which puts the large buffers of
// a batch into a ring. A slot's bytes are the server's from Reserve to Sent, and the client's until it lets go; what a
// slot refers to is pinned as long. Who may read what is the business of package flight.
package shm
