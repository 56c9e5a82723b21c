package flight

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"bowstring/schema"
)

const (
	// messageCost is about the memory of a decoded message without its texts, in bytes.
	// textCost is the memory of one text or bytes field besides its content. Two bytes of
	// protobuf can encode either, so the length of the input alone bounds nothing.
	messageCost = 160
	textCost    = 64
	// unknownCost is the memory for each byte of a field that is kept undecoded. Its buffer
	// grows by a quarter at a time, and every earlier buffer is garbage until it is
	// collected.
	unknownCost = 8
	// maxNesting bounds the depth of nested messages.
	maxNesting = 16
)

// unmarshal decodes a protobuf in the body of an action. It reserves the memory for the
// caller's address before decoding, until the call ends. A small body can decode into a
// message many times its size.
func (s *Server) unmarshal(ctx context.Context, b []byte, m proto.Message) error {
	about := m.ProtoReflect().Descriptor()
	cost, err := decodedCost(b, about, 0)
	if err == nil {
		var release func()
		if release, err = s.reserveAnswer(ctx, cost); err != nil {
			return fmt.Errorf("a %s of %d bytes: %w", about.Name(), len(b), err)
		}
		context.AfterFunc(ctx, release)
		err = proto.Unmarshal(b, m)
	}
	if err != nil {
		return &schema.FieldError{Field: "body", Got: err.Error(), Want: fmt.Sprintf("a protobuf %s", about.Name())}
	}
	return nil
}

// decodedCost returns the memory of a decoded message in bytes. It only walks the wire
// format: it allocates nothing.
func decodedCost(b []byte, about protoreflect.MessageDescriptor, depth int) (int64, error) {
	if depth > maxNesting {
		return 0, fmt.Errorf("messages are nested %d deep", depth)
	}
	cost := int64(messageCost)
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		value := b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, value); n < 0 {
			return 0, protowire.ParseError(n)
		}
		b = value[n:]
		field := about.Fields().ByNumber(number)
		switch {
		case field == nil || !delimited(field) || kind != protowire.BytesType:
			// A number, or bytes that are kept undecoded: the field is unknown or has another type.
			cost += unknownCost * int64(n+protowire.SizeTag(number))
		case field.Message() != nil:
			inner, _ := protowire.ConsumeBytes(value)
			more, err := decodedCost(inner, field.Message(), depth+1)
			if err != nil {
				return 0, err
			}
			cost += more
		default:
			cost += textCost + int64(n)
		}
	}
	return cost, nil
}

// delimited reports whether a field has a length prefix: a message, a text or bytes.
func delimited(field protoreflect.FieldDescriptor) bool {
	switch field.Kind() {
	case protoreflect.MessageKind, protoreflect.StringKind, protoreflect.BytesKind:
		return true
	default:
		return false
	}
}
