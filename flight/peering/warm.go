package peering

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"bowstring/schema"
)

// Warm has the node bring its part of a request, and calls progress with what it says: the results of the action warm.
func (l *Link) Warm(ctx context.Context, what Warm, progress func([]byte)) error {
	if !l.up.Load() {
		return errDown
	}
	if !l.warms.Load() {
		return fmt.Errorf("%w: its version cannot be asked to", schema.ErrUnavailable)
	}
	b, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("encoding what to warm: %w", err)
	}
	ctx, cancel := context.WithCancel(l.authorized(ctx))
	defer cancel()
	stream, err := l.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/"+Service+"/"+WarmMethod)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&wrapperspb.BytesValue{Value: b}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for {
		var m message
		switch err := stream.RecvMsg(&m); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		said := m.data.Materialize()
		m.data.Free()
		progress(said)
	}
}

// message is what the other side sends, as it came.
type message struct{ data mem.BufferSlice }

// codec takes messages as they come; all else is protobuf.
type codec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2. grpc frees its hold of the data.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(*message); ok {
		data.Ref()
		m.data = data
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}
