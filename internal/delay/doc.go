// Package delay gives connections and stores the latency, the bandwidth and the
// windows of a long link, in user space: for tests and measurements on machines
// whose kernel cannot (tc-netem).
//
// # Model
//
// A [Link] joins this process, the client, to servers far away that answer requests. What
// the client sends arrives a whole RTT later; what it is sent is there at once. So an
// answer comes one RTT after its request, as if each had taken half of it, but answers,
// which are most of the bytes, are never stored: Read reads from the
// underlying connection into the caller's buffer, and is held back by the limits alone. What
// is not read yet lies in the sockets, and holds the server back as it does without a link.
//
//   - A connection costs one RTT, the handshake, before it can be used.
//   - What one Write was given, in chunks of at most 64 KiB, also takes a jitter between 0 and
//     Jitter, drawn for each. Chunks keep their order: one with little jitter waits for the one before.
//   - Window bounds the bytes of a connection and direction that are not acknowledged.
//     A byte is acknowledged one RTT after it was read, or when a byte sent has been delivered:
//     a connection carries Window bytes a round trip at most. As in TCP, one
//     waits for room worth a packet: a sixteenth of the window, at most 64 KiB.
//   - With SlowStart, that window is 14,600 bytes at first and grows by what is
//     acknowledged, up to Window: it doubles each round trip. There is no loss,
//     and an idle connection keeps its window.
//   - Bandwidth is one bottleneck for each direction, shared by all connections. Chunks
//     of at most 64 KiB or 1 ms pass it one after another. A connection has one of them there at a time,
//     so that all get the same share, and may be up to 1 ms ahead of it, so that waking late costs no bandwidth.
//   - What is sent is held back where the server leaves 8 MiB unread of what has arrived.
//   - The end of what is sent (Close, CloseWrite) travels like data. Close does not
//     wait: what was written before is still delivered, for up to 5 s beyond its time.
//
// With an RTT of 0 bytes take the same way through the same code, so that runs with
// different latencies compare. Times at which something arrives or is acknowledged are rounded up to
// a thousandth of the RTT, so that what is due at about the same time takes one wake-up.
//
// # What is not modelled
//
// What a server sends unasked, the end of its stream among it, takes no time. Answers have no jitter of their own: it
// is that of their requests. One way cannot have another delay or bandwidth than the other. Packets are neither lost
// nor reordered. Connections share the bottleneck fairly by Reads: one that asks for less than a chunk gets less.
//
// # Seed
//
// The jitter of the n-th chunk of the k-th connection dialled depends on Seed,
// k and n alone.
//
// # Cost
//
// A real link costs its ends no processor time, and this one costs little: a connection has one
// goroutine, which delivers what was sent, from a queue that keeps its memory. Nothing is allocated
// for a Read or a Write in steady state.
package delay
