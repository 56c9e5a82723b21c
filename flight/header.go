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
	slotSchemaFields      = 6
	slotSchemaMetadata    = 8
	slotFieldName         = 4
	slotFieldTypeType     = 8
	slotFieldType         = 10
	slotFieldChildren     = 14
	slotFieldMetadata     = 16
	slotKey               = 4
	slotValue             = 6

	typeTimestamp = 10 // Type.Timestamp
	slotTimezone  = 6
)

const (
	// maxSchemaTables bounds the fields and the pairs of metadata of a schema.
	maxSchemaTables = 1 << 17
	// maxSchemaDepth bounds how deep its types are nested.
	maxSchemaDepth = 32
	// maxSharing is how much larger than the message its texts may be together:
	// writers may store equal ones once.
	maxSharing = 16
)

// checkHeader bounds the lists and texts of a message's header. The IPC reader
// allocates whatever lengths it finds there, and follows tables wherever they
// point, so that a hundred bytes could ask for any amount of memory. What
// merely points outside of the header makes the reader panic, and an error.
func checkHeader(header []byte) (err error) {
	defer func() {
		if p := recover(); p != nil { // flatbuffers reads without checks
			err = fmt.Errorf("%w: the header of a message is broken: %v", schema.ErrInvalid, p)
		}
	}()
	msg := flatbuffers.Table{Bytes: header, Pos: flatbuffers.GetUOffsetT(header)}
	if msg.GetByteSlot(slotMessageHeaderType, 0) != headerSchema {
		return nil // the rest is read by what the schema says
	}
	var s flatbuffers.Table
	msg.Union(&s, flatbuffers.UOffsetT(msg.Offset(slotMessageHeader)))
	c := schemaCheck{tables: maxSchemaTables, text: maxSharing * len(header)}
	return c.first(
		func() error { return c.each(&s, slotSchemaMetadata, c.pair) },
		func() error {
			return c.each(&s, slotSchemaFields, func(f *flatbuffers.Table) error { return c.field(f, 0) })
		},
	)
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
func (c *schemaCheck) each(t *flatbuffers.Table, slot flatbuffers.VOffsetT, visit func(*flatbuffers.Table) error) error {
	o := flatbuffers.UOffsetT(t.Offset(slot))
	if o == 0 {
		return nil
	}
	n, at := t.VectorLen(o), t.Vector(o)
	if c.tables -= n; n < 0 || c.tables < 0 {
		return fmt.Errorf("%w: a schema has more than %d fields and pairs of metadata", schema.ErrInvalid, maxSchemaTables)
	}
	for i := range n {
		if err := visit(&flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(at + flatbuffers.UOffsetT(4*i))}); err != nil {
			return err
		}
	}
	return nil
}
