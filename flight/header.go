package flight

import (
	"fmt"

	flatbuffers "github.com/google/flatbuffers/go"

	"bowstring/schema"
)

// The parts of Message.fbs and Schema.fbs, of the Arrow format, that a schema
// message is checked by: positions of fields in the tables' vtables.
const (
	headerSchema = 1 // MessageHeader.Schema

	slotMessageHeaderType = 6
	slotMessageHeader     = 8
	slotSchemaEndianness  = 4
	slotSchemaFields      = 6
	slotSchemaMetadata    = 8
	slotFieldName         = 4
	slotFieldTypeType     = 8
	slotFieldType         = 10
	slotFieldDictionary   = 12
	slotFieldChildren     = 14
	slotFieldMetadata     = 16
	slotKey               = 4
	slotValue             = 6

	typeTimestamp = 10 // Type.Timestamp
	typeUnion     = 14 // Type.Union
	slotTimezone  = 6
	slotEncodedID = 4
)

const (
	// maxSchemaTables bounds the fields and the pairs of metadata of a schema.
	maxSchemaTables = 1 << 15
	// tableMemory is what each of them takes decoded, in bytes.
	tableMemory = 512
	// maxSchemaBytes bounds the message of a schema.
	maxSchemaBytes = 2 << 20
	// maxSchemaDepth bounds how deep its types are nested.
	maxSchemaDepth = 32
	// maxSharing is how much larger than the message its texts may be together:
	// writers may store equal ones once.
	maxSharing = 16
)

// schemaHead is what is known of a schema before it is decoded.
type schemaHead struct {
	memory       int64         // that decoding takes at most
	dictionaries map[int]int64 // ids by column, where there are any
}

// checkSchema bounds the lists and texts of a schema's message. The Arrow
// library allocates whatever lengths it finds there, and follows tables wherever
// they point, so that a hundred bytes could ask for any amount of memory. What
// merely points outside of the message makes the library panic, and an error.
func checkSchema(header []byte) (head schemaHead, err error) {
	defer func() { err = brokenFlatbuffer(recover(), err) }()
	if len(header) > maxSchemaBytes {
		return head, fmt.Errorf("%w: a schema has %d bytes, and may have %d", schema.ErrLimit, len(header),
			maxSchemaBytes)
	}
	msg := flatbuffers.Table{Bytes: header, Pos: flatbuffers.GetUOffsetT(header)}
	at := flatbuffers.UOffsetT(msg.Offset(slotMessageHeader))
	if kind := msg.GetByteSlot(slotMessageHeaderType, 0); kind != headerSchema || at == 0 {
		return head, fmt.Errorf("%w: a message of type %d comes where a schema does", schema.ErrInvalid, kind)
	}
	var s flatbuffers.Table
	msg.Union(&s, at)
	if s.GetInt16Slot(slotSchemaEndianness, 0) != 0 {
		return head, &schema.FieldError{Field: "schema.endianness", Got: "big", Want: "little"}
	}
	c := schemaCheck{tables: maxSchemaTables, text: maxSharing * len(header)}
	column := 0
	head.dictionaries = map[int]int64{}
	err = c.first(
		func() error { return c.each(&s, slotSchemaMetadata, c.pair) },
		func() error {
			return c.each(&s, slotSchemaFields, func(f *flatbuffers.Table) error {
				if at := flatbuffers.UOffsetT(f.Offset(slotFieldDictionary)); at != 0 {
					d := flatbuffers.Table{Bytes: f.Bytes, Pos: f.Indirect(f.Pos + at)}
					head.dictionaries[column] = d.GetInt64Slot(slotEncodedID, 0)
				}
				column++
				return c.field(f, 0)
			})
		},
	)
	head.memory = tableMemory*int64(maxSchemaTables-c.tables) + 2*int64(maxSharing*len(header)-c.text)
	return head, err
}

// schemaCheck is what a schema may still have.
type schemaCheck struct{ tables, text int }

func (c *schemaCheck) first(checks ...func() error) error {
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *schemaCheck) field(f *flatbuffers.Table, depth int) error {
	if depth > maxSchemaDepth {
		return fmt.Errorf("%w: a schema is nested more than %d levels deep", schema.ErrInvalid, maxSchemaDepth)
	}
	if depth > 0 && f.Offset(slotFieldDictionary) != 0 {
		return fmt.Errorf("%w: a schema has a dictionary inside of a list or struct; only columns may have one",
			schema.ErrInvalid)
	}
	if f.GetByteSlot(slotFieldTypeType, 0) == typeUnion {
		return fmt.Errorf("%w: a schema has a union, which is not supported", schema.ErrInvalid)
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

func (c *schemaCheck) pair(kv *flatbuffers.Table) error {
	return c.first(
		func() error { return c.string(kv, slotKey) },
		func() error { return c.string(kv, slotValue) },
	)
}

func (c *schemaCheck) string(t *flatbuffers.Table, slot flatbuffers.VOffsetT) error {
	at := flatbuffers.UOffsetT(t.Offset(slot))
	if at == 0 {
		return nil
	}
	n := t.VectorLen(at)
	if c.text -= n; n < 0 || c.text < 0 {
		return fmt.Errorf("%w: the texts of a schema are longer than its message", schema.ErrInvalid)
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
	if c.tables -= n; n < 0 || c.tables < 0 {
		return fmt.Errorf("%w: a schema has more than %d fields and pairs of metadata", schema.ErrInvalid,
			maxSchemaTables)
	}
	for i := range n {
		if err := visit(&flatbuffers.Table{Bytes: t.Bytes,
			Pos: t.Indirect(at + flatbuffers.UOffsetT(4*i))}); err != nil {
			return err
		}
	}
	return nil
}
