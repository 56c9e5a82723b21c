package ipc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	flatbuffers "github.com/google/flatbuffers/go"
)

// The parts of Message.fbs and Schema.fbs of the Arrow format that a schema message is
// checked by: positions of fields in the vtables.
const (
	slotSchemaEndianness = 4
	slotSchemaFields     = 6
	slotSchemaMetadata   = 8
	slotFieldName        = 4
	slotFieldTypeType    = 8
	slotFieldType        = 10
	slotFieldDictionary  = 12
	slotFieldChildren    = 14
	slotFieldMetadata    = 16
	slotKey              = 4
	slotValue            = 6

	typeTimestamp = 10 // Type.Timestamp
	typeUnion     = 14 // Type.Union
	slotTimezone  = 6
	slotEncodedID = 4
)

const (
	// tableMemory is the memory of a decoded field or pair of metadata, in bytes.
	tableMemory = 512
	// maxSharing is by which factor a schema's texts may exceed its message, as writers
	// may store equal texts once.
	maxSharing = 16
)

// SchemaLimits bound the message of a schema.
type SchemaLimits struct {
	Bytes int // of the message
	// Tables bounds its fields and pairs of metadata, Depth the nesting of its types.
	Tables, Depth int
	// Dictionaries is the depth of fields that may have a dictionary: 0 for none, 1 for
	// columns.
	Dictionaries int
}

// DecodeSchema parses the header of a schema's message. dictionaries are the ids of the
// columns' dictionaries. The memory of decoding is counted in mem beforehand.
//
// The Arrow library allocates any length that it finds, and follows tables to any place,
// so a message of a hundred bytes could ask for any amount of memory. So lists and texts
// are bounded first. A pointer out of the message makes the library panic, which becomes
// an error.
func DecodeSchema(b []byte, limits SchemaLimits, mem Memory) (s *arrow.Schema, dictionaries map[int]int64, err error) {
	c := schemaCheck{SchemaLimits: limits, tables: limits.Tables, text: maxSharing * len(b)}
	if dictionaries, err = c.check(b); err != nil {
		return nil, nil, err
	}
	if err := mem.Grow(tableMemory*int64(limits.Tables-c.tables) + 2*int64(maxSharing*len(b)-c.text)); err != nil {
		return nil, nil, err
	}
	prefix := binary.LittleEndian.AppendUint32(nil, continuation)
	prefix = binary.LittleEndian.AppendUint32(prefix, uint32(len(b)))
	r, err := ipc.NewReader(io.MultiReader(bytes.NewReader(prefix), bytes.NewReader(b)))
	if err != nil {
		var why any = err
		if _, ok := errors.AsType[runtime.Error](err); ok {
			why = "it leads out of itself" // the text of a panic is of no use to a client
		} else if strings.Contains(err.Error(), libraryPanic) {
			why = "it holds what the library does not expect" // nor is a panic that the library turned into an error
		}
		return nil, nil, broken("a schema of Arrow IPC cannot be read: %.200v", why)
	}
	defer r.Release()
	return r.Schema(), dictionaries, nil
}

// libraryPanic is part of the errors that the Arrow library makes of its panics.
const libraryPanic = "unknown error while reading"

// schemaCheck is what remains of a schema's limits.
type schemaCheck struct {
	SchemaLimits
	tables, text int
}

// check bounds the lists and texts of a schema's message, and collects the dictionaries.
func (c *schemaCheck) check(b []byte) (dictionaries map[int]int64, err error) {
	defer func() { err = leadsOut(recover(), err) }()
	if len(b) > c.Bytes {
		return nil, tooMuch("a schema has %d bytes, and may have %d", len(b), c.Bytes)
	}
	kind, s, body, err := header(b)
	if err != nil {
		return nil, err
	}
	if kind != kindSchema || body != 0 {
		return nil, broken("a message of type %d, with a body of %d bytes, comes where a schema does", kind, body)
	}
	if s.GetInt16Slot(slotSchemaEndianness, 0) != 0 {
		return nil, broken("a schema's endianness is big, want little")
	}
	column := 0
	dictionaries = map[int]int64{}
	return dictionaries, c.first(
		func() error { return c.each(&s, slotSchemaMetadata, c.pair) },
		func() error {
			return c.each(&s, slotSchemaFields, func(f *flatbuffers.Table) error {
				if at := flatbuffers.UOffsetT(f.Offset(slotFieldDictionary)); at != 0 {
					d := flatbuffers.Table{Bytes: f.Bytes, Pos: f.Indirect(f.Pos + at)}
					dictionaries[column] = d.GetInt64Slot(slotEncodedID, 0)
				}
				column++
				return c.field(f, 0)
			})
		},
	)
}

// first returns the first error of several checks.
func (c *schemaCheck) first(checks ...func() error) error {
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// field checks a field and its children.
func (c *schemaCheck) field(f *flatbuffers.Table, depth int) error {
	if depth > c.Depth {
		return broken("a schema is nested more than %d levels deep", c.Depth)
	}
	if depth >= c.Dictionaries && f.Offset(slotFieldDictionary) != 0 {
		return broken("a schema has a dictionary where none may be: only columns may have one, if any")
	}
	if f.GetByteSlot(slotFieldTypeType, 0) == typeUnion {
		return broken("a schema has a union, which is not supported")
	}
	return c.first(
		func() error { return c.string(f, slotFieldName) },
		func() error {
			at := flatbuffers.UOffsetT(f.Offset(slotFieldType))
			if f.GetByteSlot(slotFieldTypeType, 0) != typeTimestamp || at == 0 {
				return nil
			}
			var t flatbuffers.Table
			f.Union(&t, at)
			return c.string(&t, slotTimezone)
		},
		func() error { return c.each(f, slotFieldMetadata, c.pair) },
		func() error {
			return c.each(f, slotFieldChildren, func(f *flatbuffers.Table) error { return c.field(f, depth+1) })
		},
	)
}

// pair checks a pair of metadata.
func (c *schemaCheck) pair(kv *flatbuffers.Table) error {
	return c.first(
		func() error { return c.string(kv, slotKey) },
		func() error { return c.string(kv, slotValue) },
	)
}

// string subtracts a text from the remaining length.
func (c *schemaCheck) string(t *flatbuffers.Table, slot flatbuffers.VOffsetT) error {
	at := flatbuffers.UOffsetT(t.Offset(slot))
	if at == 0 {
		return nil
	}
	n := t.VectorLen(at)
	if c.text -= n; n < 0 || c.text < 0 {
		return broken("the texts of a schema are longer than its message")
	}
	return nil
}

// each visits the tables of a vector.
func (c *schemaCheck) each(t *flatbuffers.Table, slot flatbuffers.VOffsetT,
	visit func(*flatbuffers.Table) error) error {
	o := flatbuffers.UOffsetT(t.Offset(slot))
	if o == 0 {
		return nil
	}
	n, at := t.VectorLen(o), t.Vector(o)
	if c.tables -= n; n < 0 || c.tables < 0 || n > len(t.Bytes)/4 {
		return broken("a schema has more than %d fields and pairs of metadata", c.Tables)
	}
	for i := range n {
		if err := visit(&flatbuffers.Table{Bytes: t.Bytes,
			Pos: t.Indirect(at + flatbuffers.UOffsetT(4*i))}); err != nil {
			return err
		}
	}
	return nil
}
