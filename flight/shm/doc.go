// Package shm shares memory with clients on the server's machine, so that the bytes of
// blobs need not go through a socket.
//
// A client connects to a unix socket. It and the server authenticate to each other, and
// the server hands it a [Ring]: memory for this client alone, which it maps and can only
// read. The ring ends with the connection. Its memory counts until the kernel has freed
// it, that is, until no process has a descriptor or a mapping of it.
//
// Calls come by Flight and name the ring. The server copies the large buffers of a record
// batch into a slot of the ring, and writes their offsets into the batch's metadata. The
// client reports by the socket which slots it has taken and which it has released. The
// server writes a slot again only after its release.
//
// A client can read the bytes that it was sent, and no others: it gets no file of the
// server and no memory of other clients. Options.References changes this: a slot may
// refer to blobs in files of the server, which the client gets open for reading. The slot
// pins these blobs until it is free.
//
// This package has the socket, the rings with their accounts, and the [Sideband], which
// puts the large buffers of one call's batches into a ring. The server may write a slot's
// bytes from Reserve to Sent; then they are the client's until it releases the slot.
// Package flight decides which caller may read which data. Begin with [Server], [Ring]
// and [Sideband.Share].
package shm
