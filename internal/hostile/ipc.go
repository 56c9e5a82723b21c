package hostile

import (
	"encoding/binary"
	"fmt"

	flatbuffers "github.com/google/flatbuffers/go"
	"google.golang.org/protobuf/encoding/protowire"
)

// The types are those of Schema.fbs in Arrow's format. The kinds of messages are those of
// Message.fbs, and the codecs those of BodyCompression. plain is not of the format: it
// means that a batch is not compressed.
const (
	typeNull            = 1
	typeInt             = 2
	typeBinary          = 4
	typeUtf8            = 5
	typeBool            = 6
	typeList            = 12
	typeStruct          = 13
	typeUnion           = 14
	typeFixedSizeBinary = 15
	typeFixedSizeList   = 16
	typeRunEndEncoded   = 22
	typeListView        = 25

	kindSchema     = 1
	kindDictionary = 2
	kindBatch      = 3

	codecLZ4  = 0
	codecZstd = 1
	plain     = -1
)

// field is a column of a schema. width is in bytes for fixed_size_binary, in bits for
// integers, and in items for fixed_size_list. dictionary is the id of a dictionary, or
// nil.
type field struct {
	name       string
	kind       byte
	width      int32
	children   []field
	dictionary *int64
}

// write writes the field and its children, and returns its offset.
func (f field) write(fb *flatbuffers.Builder) flatbuffers.UOffsetT {
	children := make([]flatbuffers.UOffsetT, len(f.children))
	for i, c := range f.children {
		children[i] = c.write(fb)
	}
	return f.writeWith(fb, children)
}

// writeWith writes the field with children that are written already. The numbers of the
// slots are the positions of the fields in the tables Field and DictionaryEncoding of
// Schema.fbs. A FlatBuffer is written from its leaves to its root.
func (f field) writeWith(fb *flatbuffers.Builder, children []flatbuffers.UOffsetT) flatbuffers.UOffsetT {
	name := fb.CreateString(f.name)
	list := offsets(fb, children)
	fb.StartObject(2)
	if f.width != 0 {
		fb.PrependInt32Slot(0, f.width, 0)
	}
	if f.kind == typeInt {
		fb.PrependBoolSlot(1, true, false)
	}
	kind := fb.EndObject()
	var dictionary flatbuffers.UOffsetT
	if f.dictionary != nil {
		fb.StartObject(2)
		fb.PrependInt32Slot(0, 8, 0)
		fb.PrependBoolSlot(1, true, false)
		// The index of a dictionary is an int8.
		index := fb.EndObject()
		fb.StartObject(4)
		fb.PrependInt64Slot(0, *f.dictionary, -1)
		fb.PrependUOffsetTSlot(1, index, 0)
		dictionary = fb.EndObject()
	}
	fb.StartObject(7)
	fb.PrependUOffsetTSlot(0, name, 0)
	fb.PrependBoolSlot(1, true, false)
	fb.PrependByteSlot(2, f.kind, 0)
	fb.PrependUOffsetTSlot(3, kind, 0)
	if dictionary != 0 {
		fb.PrependUOffsetTSlot(4, dictionary, 0)
	}
	fb.PrependUOffsetTSlot(5, list, 0)
	return fb.EndObject()
}

// offsets writes a vector of tables. It is written backwards, as FlatBuffers requires.
func offsets(fb *flatbuffers.Builder, list []flatbuffers.UOffsetT) flatbuffers.UOffsetT {
	fb.StartVector(4, len(list), 4)
	for i := len(list) - 1; i >= 0; i-- {
		fb.PrependUOffsetT(list[i])
	}
	return fb.EndVector(len(list))
}

// message wraps a header in the table Message: version 5 of the metadata, which has the
// value 4, the kind, the header, and the length of the body.
func message(fb *flatbuffers.Builder, kind byte, header flatbuffers.UOffsetT, body int) []byte {
	fb.StartObject(5)
	fb.PrependInt16Slot(0, 4, 0)
	fb.PrependByteSlot(1, kind, 0)
	fb.PrependUOffsetTSlot(2, header, 0)
	fb.PrependInt64Slot(3, int64(body), 0)
	fb.Finish(fb.EndObject())
	return fb.FinishedBytes()
}

// schemaOf returns the message of a schema whose fields are written.
func schemaOf(fb *flatbuffers.Builder, fields []flatbuffers.UOffsetT) []byte {
	list := offsets(fb, fields)
	fb.StartObject(4)
	fb.PrependUOffsetTSlot(1, list, 0)
	return message(fb, kindSchema, fb.EndObject(), 0)
}

// schemaMessage returns the message of a schema.
func schemaMessage(fields ...field) []byte {
	fb := flatbuffers.NewBuilder(1024)
	at := make([]flatbuffers.UOffsetT, len(fields))
	for i, f := range fields {
		at[i] = f.write(fb)
	}
	return schemaOf(fb, at)
}

// repeated returns a schema of n columns that all refer to one table. Its size is 4 bytes
// a column, and a reader that copies each column takes far more.
func repeated(n int, f field) []byte {
	fb := flatbuffers.NewBuilder(1024)
	one := f.write(fb)
	at := make([]flatbuffers.UOffsetT, n)
	for i := range at {
		at[i] = one
	}
	return schemaOf(fb, at)
}

// nested returns a schema of lists of lists. A reader that recurses without a limit
// overflows its stack.
func nested(depth int) []byte {
	fb := flatbuffers.NewBuilder(1024)
	at := field{name: "leaf", kind: typeBool}.write(fb)
	for range depth {
		at = field{name: "l", kind: typeList}.writeWith(fb, []flatbuffers.UOffsetT{at})
	}
	return schemaOf(fb, []flatbuffers.UOffsetT{at})
}

// batch is the content of a record batch. Each of its claims may be false.
type batch struct {
	rows    int64
	nodes   [][2]int64 // rows and nulls of each column and child, in depth-first order
	buffers [][]byte   // by which the body is made
	claims  [][2]int64 // false locations of buffers, instead of the real ones
	codec   int8       // of BodyCompression, or plain
}

// table writes the table RecordBatch and returns its offset and the body. Buffers are
// padded to 8 bytes, as the format requires.
func (b batch) table(fb *flatbuffers.Builder) (at flatbuffers.UOffsetT, body []byte) {
	// Claims replace the places of the buffers and not the buffers.
	places := b.claims
	for _, buf := range b.buffers {
		if b.claims == nil {
			places = append(places, [2]int64{int64(len(body)), int64(len(buf))})
		}
		body = append(body, buf...)
		body = append(body, make([]byte, -len(body)&7)...)
	}
	// FieldNode and Buffer are structs of two int64. A struct is written in place, its
	// last field first.
	pairs := func(list [][2]int64) flatbuffers.UOffsetT {
		fb.StartVector(16, len(list), 8)
		for i := len(list) - 1; i >= 0; i-- {
			fb.Prep(8, 16)
			fb.PrependInt64(list[i][1])
			fb.PrependInt64(list[i][0])
		}
		return fb.EndVector(len(list))
	}
	var compression flatbuffers.UOffsetT
	if b.codec != plain {
		fb.StartObject(2)
		fb.PrependInt8Slot(0, b.codec, 0)
		compression = fb.EndObject()
	}
	buffers, nodes := pairs(places), pairs(b.nodes)
	fb.StartObject(5)
	fb.PrependInt64Slot(0, b.rows, 0)
	fb.PrependUOffsetTSlot(1, nodes, 0)
	fb.PrependUOffsetTSlot(2, buffers, 0)
	if compression != 0 {
		fb.PrependUOffsetTSlot(3, compression, 0)
	}
	return fb.EndObject(), body
}

// record returns the batch as a FlightData.
func (b batch) record() []byte {
	fb := flatbuffers.NewBuilder(1024)
	at, body := b.table(fb)
	return data(nil, message(fb, kindBatch, at, len(body)), body)
}

// dictionary returns the batch as the FlightData of a dictionary. A delta extends the one
// that came before.
func (b batch) dictionary(id int64, delta bool) []byte {
	fb := flatbuffers.NewBuilder(1024)
	at, body := b.table(fb)
	fb.StartObject(3)
	fb.PrependInt64Slot(0, id, -1)
	fb.PrependUOffsetTSlot(1, at, 0)
	fb.PrependBoolSlot(2, delta, false)
	return data(nil, message(fb, kindDictionary, fb.EndObject(), len(body)), body)
}

// column returns a batch of one column without nulls. The nil buffer is the validity
// bitmap, which is absent.
func column(rows int64, codec int8, buffers ...[]byte) batch {
	return batch{rows: rows, nodes: [][2]int64{{rows, 0}}, buffers: append([][]byte{nil}, buffers...), codec: codec}
}

// data returns a serialized FlightData: a descriptor if there is a command, the header,
// and the body, whose field has the number 1000 in Flight.proto.
func data(command, header, body []byte) []byte {
	var b []byte
	if command != nil {
		// The field 1 of FlightData is the descriptor, and the field 2 the header.
		d := protowire.AppendTag(nil, 1, protowire.VarintType)
		d = protowire.AppendVarint(d, 2) // CMD
		d = protowire.AppendTag(d, 2, protowire.BytesType)
		d = protowire.AppendBytes(d, command)
		b = protowire.AppendBytes(protowire.AppendTag(b, 1, protowire.BytesType), d)
	}
	b = protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), header)
	return protowire.AppendBytes(protowire.AppendTag(b, 1000, protowire.BytesType), body)
}

// descriptor returns a serialized FlightDescriptor with a command.
func descriptor(command string) []byte {
	d := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 2)
	return protowire.AppendString(protowire.AppendTag(d, 2, protowire.BytesType), command)
}

// textField returns a message with one field of text, such as a Ticket.
func textField(n protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, n, protowire.BytesType), text)
}

// claiming puts the uncompressed size before a compressed buffer. Arrow's format has it
// as 8 bytes, little endian.
func claiming(n int64, b []byte) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(n)), b...)
}

// offsets32 returns a buffer of 32-bit offsets.
func offsets32(list ...int32) (b []byte) {
	for _, n := range list {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	return b
}

// put returns the command of an upload.
func put(dataset string) []byte {
	return fmt.Appendf(nil, `{"put": {"dataset": %q, "mode": "replace"}}`, dataset)
}

// take returns the command of a DoExchange.
func take(dataset string) []byte {
	return fmt.Appendf(nil, `{"take": {"dataset": %q, "columns": ["id"]}}`, dataset)
}

// withCommand adds a descriptor to a serialized FlightData. The order of fields in a
// message does not matter.
func withCommand(command, flightData []byte) []byte {
	return append(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), descriptor(string(command))),
		flightData...)
}
