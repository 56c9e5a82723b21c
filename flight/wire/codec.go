package wire

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that everything but a frame goes through
	"google.golang.org/grpc/mem"
)

// codec hands frames to grpc as the scatter lists they are, and everything
// else to the protobuf codec. Marshalling a FlightData would copy each blob
// three times; a frame that leaves by a Conn copies none.
type codec struct{ encoding.CodecV2 }

// ServerOptions make a server send frames by the connections of Listen.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")}),
		grpc.WriteBufferSize(0), // connections gather what is written; see Conn
	}
}

// Uncompressed has grpc send the answers of a call as they are. It would compress them for a client that says that it
// compresses its requests, and read blobs for that by itself: no page of a file that cannot be read would be dealt with.
func Uncompressed(ctx context.Context) error {
	stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string })
	if !ok {
		return ErrTransport
	}
	if stream.RecvCompress() == "" {
		return nil
	}
	if err := grpc.SetSendCompressor(ctx, encoding.Identity); err != nil && ctx.Err() == nil {
		return fmt.Errorf("sending answers uncompressed: %w", err)
	}
	return context.Cause(ctx)
}

// Marshal implements encoding.CodecV2. grpc frees the buffers it returns.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*Frame); ok {
		return f.buffers(), nil
	}
	return c.CodecV2.Marshal(v)
}
