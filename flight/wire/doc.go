// Package wire brings record batches onto connections of HTTP/2 and takes messages from
// them, without copying a blob within the process.
//
// There is one way through it. [Sender] checks a batch and makes a [Frame] of it: a list
// of slices. The large ones point at the memory of blobs. [Lane.Send] hands the
// frame to grpc and follows it. grpc cuts it into DATA frames and writes each slice to a
// [Conn], which knows the slices again, keeps them by reference, and has its writer send
// many at once, over TLS as records. A listener ([Listen]) makes the connections;
// [ServerOptions] has grpc leave the slices as they are. [Receiver] takes messages in,
// whose lengths are checked and whose memory is counted ([Lease]) as they come.
//
// Memory: a frame owns its batch, and with it every slice of a [Piece] that is held. The
// slices stay readable until the batch is released. That is once, when the kernel has
// their bytes, or when the call or the connection has ended and nothing reads them any
// more. A slice may be in a mapped file: see [FreshUntil].
package wire
