package wire

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that everything but a frame goes through
	"google.golang.org/grpc/mem"
)

// ProvenGRPC is the release of grpc with which this package was proven. It leans on things that grpc does not promise:
//
//   - without a write buffer, its transport writes the header of each DATA frame by itself, then the slices of the
//     message as SendMsg got them (Conn.Write);
//   - it frees each slice when it writes no more of it, or drops all of a message, as Lane says;
//   - its stream on the server has the field id, and the methods ReadMessageHeader and RecvCompress.
//
// With another release, a server uses none of that: see Plain.
const ProvenGRPC = "1.85.0"

// Plain reports whether this program has another release of grpc than the one that was proven. Connections, frames and
// receivers are plain then: a message is copied into one piece before grpc gets it, and is received by grpc, which knows
// no MessageTimeout.
func Plain() bool { return grpc.Version != ProvenGRPC }

// errTransport says that grpc is not the release whose transport this package knows.
var errTransport = errors.New("the transport of grpc is not the one that this server was made for")

// isPlain reports whether a call came by a plain connection, or by one that is not of this package.
func isPlain(ctx context.Context) bool {
	conn := ConnOf(ctx)
	return conn != nil && conn.plain
}

// codec hands frames to grpc as the scatter lists they are, and everything
// else to the protobuf codec. Marshalling a FlightData would copy each blob
// three times; a frame that leaves by a Conn copies none.
type codec struct {
	encoding.CodecV2
	plain bool
}

// ServerOptions make a server send frames by the connections of Listen. plain is as in Listening; limits are those of its
// receivers.
func ServerOptions(plain bool, limits Limits) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto"), plain}),
		grpc.WriteBufferSize(0), // connections gather what is written; see Conn
		grpc.MaxRecvMsgSize(limits.MaxMessageBytes + limits.MaxRequestBytes + requestSlack), // if receivers are plain
	}
}

// Uncompressed has grpc send the answers of a call as they are. It would compress them for a client that says that it
// compresses its requests, and read blobs for that by itself: no page of a file that cannot be read would be dealt with.
func Uncompressed(ctx context.Context) error {
	if !isPlain(ctx) {
		stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string })
		if !ok {
			return errTransport
		}
		if stream.RecvCompress() == "" {
			return nil
		}
	}
	if err := grpc.SetSendCompressor(ctx, encoding.Identity); err != nil && ctx.Err() == nil {
		return fmt.Errorf("sending answers uncompressed: %w", err)
	}
	return context.Cause(ctx)
}

// received is a message as it came, for plain receivers.
type received []byte

// Marshal implements encoding.CodecV2. grpc frees the buffers it returns.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*Frame)
	switch {
	case !ok:
		return c.CodecV2.Marshal(v)
	case c.plain:
		return f.copied()
	}
	return f.buffers(), nil
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	to, ok := v.(*received)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	*to = make([]byte, data.Len(), data.Len()+bodyAlign)
	data.CopyTo(*to)
	return nil
}
