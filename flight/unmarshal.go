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
	// messageCost is about what a decoded message takes in memory beside its texts, and textCost what one of its texts
	// or bytes fields does, in bytes. Two bytes of protobuf can be either.
	messageCost = 160
	textCost    = 64
	// unknownCost is what a byte of a field takes that is kept as it is: it is in a buffer that grows by a quarter, and
	// all that the buffer was before is memory until it is collected.
	unknownCost = 8
	// maxNesting bounds the depth of nested messages.
	maxNesting = 16
)

// unmarshal decodes a protobuf in the body of an action. Its memory is charged to the
// caller's account before it is decoded, until the call ends.
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

// decodedCost is what a message takes once it is decoded, in bytes. It allocates nothing.
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
			// A number, or what is kept as it is: no field has that number, or it is of another type, such as a group.
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

// delimited reports whether a field is written with its length before it: a message, a text or bytes.
func delimited(field protoreflect.FieldDescriptor) bool {
	switch field.Kind() {
	case protoreflect.MessageKind, protoreflect.StringKind, protoreflect.BytesKind:
		return true
	default:
		return false
	}
}
