package flight

import (
	"fmt"
	"unsafe"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"bowstring/schema"
)

// Numbers of the fields of FlightData.
const (
	fieldDescriptor = 1
	fieldHeader     = 2
	fieldMetadata   = 3
	fieldBody       = 1000
)

// data takes a FlightData apart, whose parts are those of b, which protobuf
// would copy. The body begins at a multiple of bodyAlign.
func (r *receiver) data(b []byte, m *flight.FlightData) error {
	m.Reset()
	whole := b
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return notFlightData(n)
		}
		b = b[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(field, kind, b); n < 0 {
				return notFlightData(n)
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return notFlightData(n)
		}
		b = b[n:]
		switch field {
		case fieldDescriptor:
			if len(v) > r.server.opts.MaxRequestBytes+requestSlack {
				return fmt.Errorf("%w: the descriptor has %d bytes, MaxRequestBytes is %d", schema.ErrLimit, len(v),
					r.server.opts.MaxRequestBytes)
			}
			if err := r.lease.grow(requestFactor * int64(len(v))); err != nil {
				return err
			}
			if m.FlightDescriptor == nil {
				m.FlightDescriptor = &flight.FlightDescriptor{}
			}
			if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(v, m.FlightDescriptor); err != nil {
				return fmt.Errorf("%w: the descriptor is no protobuf: %v", schema.ErrInvalid, err) //nolint:errorlint // a client's mistake, whatever it wraps
			}
		case fieldHeader:
			m.DataHeader = v
		case fieldMetadata:
			m.AppMetadata = v
		case fieldBody:
			m.DataBody = v
		}
	}
	return r.align(whole, m)
}

func notFlightData(n int) error {
	return fmt.Errorf("%w: the message is no FlightData: %v", schema.ErrInvalid, protowire.ParseError(n)) //nolint:errorlint // a client's mistake, whatever it wraps
}

// align moves the body to where values can be read in place: into the room
// behind the message if it is its end, as writers have it, else elsewhere.
func (r *receiver) align(whole []byte, m *flight.FlightData) error {
	body := m.DataBody
	if len(body) == 0 {
		return nil
	}
	off := int(uintptr(unsafe.Pointer(&body[0])) % bodyAlign)
	if off == 0 {
		return nil
	}
	n := len(body)
	if &body[n-1] == &whole[len(whole)-1] && cap(body) >= n+bodyAlign {
		by := bodyAlign - off
		moved := body[by : by+n]
		copy(moved, body)
		m.DataBody = moved
		return nil
	}
	if err := r.lease.grow(int64(n)); err != nil {
		return err
	}
	m.DataBody = append(aligned(n)[:0], body...)
	return nil
}

// aligned returns n bytes whose first is at a multiple of bodyAlign.
func aligned(n int) []byte { return make([]byte, (n+bodyAlign-1)/bodyAlign*bodyAlign)[:n:n] }
