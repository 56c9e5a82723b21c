// Package delay simulates the latency, the bandwidth and the windows of a long link for connections and stores, in
// user space: for tests and measurements on machines whose kernel cannot (tc-netem).
//
// # Model
//
// A [Link] joins this process, the client, to remote servers that answer requests. Data that the client sends arrives
// a whole RTT later; data from a server arrives at once. So an answer comes one RTT after its request, as if each had
// taken half of it. Answers are most of the bytes, and the link never stores them: Read reads from the underlying
// connection into the caller's buffer, and only the limits delay it. Unread data stays in the sockets, and blocks the
// server as it does without a link.
//
//   - A connection costs one RTT, the handshake, before it can be used.
//   - Each chunk of a Write, at most 64 KiB, also takes a random jitter between 0 and Jitter. Chunks keep their
//     order: one with little jitter waits for the previous one.
//   - Window bounds the unacknowledged bytes of a connection and direction. A byte is acknowledged one RTT after it
//     was read, or when a sent byte has been delivered: a connection carries at most Window bytes per round trip. As
//     in TCP, a sender waits for room worth a packet: a sixteenth of the window, at most 64 KiB.
//   - With SlowStart, the window is 14,600 bytes at first and grows by the acknowledged bytes, up to Window: it
//     doubles each round trip. An idle connection keeps its window.
//   - Loss is the share of packets of 1,460 bytes that are lost. A lost packet arrives a round trip later, when it
//     has been sent again, and all data behind it waits. What is lost of one window is sent again within the same
//     round trip: Read is held once for it. So with many losses a connection carries at least half a window per
//     round trip. The window stays what it is, as where congestion control does not take loss for congestion.
//   - Bandwidth is one bottleneck for each direction, shared by all connections. Chunks of at most 64 KiB or 1 ms
//     pass it one after another. A connection has one chunk there at a time, so that all get the same share. It may
//     be up to 1 ms ahead, so that waking late costs no bandwidth.
//   - A sender blocks while the server leaves 8 MiB of arrived data unread.
//   - The end of sent data (Close, CloseWrite) travels like data. Close does not wait: data written before is still
//     delivered, for up to 5 s beyond its time.
//
// With an RTT of 0, bytes pass through the same code, so that runs with different latencies are comparable. Arrival
// and acknowledgement times are rounded up to a thousandth of the RTT, so that events at about the same time need one
// wake-up.
//
// # What is not modelled
//
// Data that a server sends without a request, including the end of its stream, takes no time. Answers have no jitter
// of their own: it is that of their requests. The two directions cannot have different delays or bandwidths. Packets
// are not reordered, and a window does not shrink after a loss. Connections share the bottleneck fairly by Reads: a Read of less than a chunk gets
// less.
//
// # Seed
//
// The jitter of the n-th chunk of the k-th dialled connection, and which of its packets are lost, depend only on Seed,
// k and n.
//
// # Cost
//
// A real link costs its ends no CPU time, and this one costs little. A connection has one goroutine, which delivers
// sent data from a queue that reuses its memory. In steady state, Read and Write allocate nothing.
package delay
