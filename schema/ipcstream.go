package schema

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	flatbuffers "github.com/google/flatbuffers/go"
)

// The Arrow library's reader copies every buffer of a record batch, and its
// writer aligns buffers to 8 bytes. A manifest chunk is read in place, so the
// record batch message is written and read here; the schema message is left to
// the library. Field numbers are those of Message.fbs of the Arrow format.

const (
	continuation = 0xffffffff
	bodyAlign    = 64

	metadataV5        = 4
	headerSchema      = 1
	headerRecordBatch = 3
)

var endOfStream = []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}

// encodeSchema returns the IPC message of a schema, with its prefix.
func encodeSchema(s *arrow.Schema) ([]byte, error) {
	if s == nil {
		return nil, fmt.Errorf("%w: no schema to encode", ErrInvalid)
	}
	var b bytes.Buffer
	w := ipc.NewWriter(&b, ipc.WithSchema(s))
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("encode schema: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), endOfStream), nil
}

// decodeSchema reads the IPC message of a schema.
func decodeSchema(b []byte) (s *arrow.Schema, err error) {
	defer func() {
		if p := recover(); p != nil { // the decoder panics on broken flatbuffers
			s, err = nil, fmt.Errorf("%w: decode schema: it leads out of itself", ErrDataLoss)
		}
	}()
	meta, _, _, err := nextMessage(b)
	if err != nil {
		return nil, err
	}
	if err := checkSchemaMessage(meta); err != nil {
		return nil, err
	}
	r, err := ipc.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("%w: decode schema: %w", ErrDataLoss, err)
	}
	defer r.Release()
	return r.Schema(), nil
}

// checkSchemaMessage bounds the lists in a schema message. The library's decoder
// allocates whatever lengths it finds.
func checkSchemaMessage(meta []byte) error {
	msg := rootTable(meta)
	if t := msg.GetByteSlot(6, 0); t != headerSchema {
		return fmt.Errorf("%w: message of type %d, want a schema", ErrDataLoss, t)
	}
	if n := msg.GetInt64Slot(10, 0); n != 0 {
		return fmt.Errorf("%w: schema with a body of %d bytes", ErrDataLoss, n)
	}
	var schema flatbuffers.Table
	o := flatbuffers.UOffsetT(msg.Offset(8))
	if o == 0 {
		return fmt.Errorf("%w: message without a header", ErrDataLoss)
	}
	msg.Union(&schema, o)
	left := maxSchemaTables
	const slotFields, slotMetadata = 6, 8
	return errors.Join(checkTables(&schema, slotMetadata, &left, nil),
		checkTables(&schema, slotFields, &left, func(f *flatbuffers.Table) error {
			return checkFieldTable(f, 0, &left)
		}))
}

// maxSchemaTables bounds the fields and pairs of metadata in a schema message.
const maxSchemaTables = 1 << 17

func checkFieldTable(f *flatbuffers.Table, depth int, left *int) error {
	const slotDictionary, slotChildren, slotMetadata = 12, 14, 16
	if depth > maxTypeDepth+1 {
		return fmt.Errorf("%w: schema nested more than %d levels deep", ErrDataLoss, maxTypeDepth)
	}
	if f.Offset(slotDictionary) != 0 {
		return fmt.Errorf("%w: schema with a dictionary", ErrDataLoss)
	}
	if err := checkTables(f, slotMetadata, left, nil); err != nil {
		return err
	}
	return checkTables(f, slotChildren, left, func(f *flatbuffers.Table) error {
		return checkFieldTable(f, depth+1, left)
	})
}

// checkTables calls each with every table of a vector of tables.
func checkTables(t *flatbuffers.Table, slot flatbuffers.VOffsetT, left *int,
	each func(*flatbuffers.Table) error) error {
	o := flatbuffers.UOffsetT(t.Offset(slot))
	if o == 0 {
		return nil
	}
	n, at := t.VectorLen(o), t.Vector(o)
	if *left -= n; n < 0 || *left < 0 || int64(at)+4*int64(n) > int64(len(t.Bytes)) {
		return fmt.Errorf("%w: list of %d tables in a schema of %d bytes", ErrDataLoss, n, len(t.Bytes))
	}
	for i := range n {
		sub := &flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(at + flatbuffers.UOffsetT(4*i))}
		if each != nil {
			if err := each(sub); err != nil {
				return err
			}
		}
	}
	return nil
}

// encodeStream makes an IPC stream of one record batch. Every buffer starts at
// a multiple of 64 bytes from the stream's start and is padded with zeros. Equal
// content makes equal bytes.
func encodeStream(schemaMessage []byte, rows int, cols []Vector) []byte {
	var nodes, buffers [][2]int64
	var body int64
	var walk func(v *Vector)
	walk = func(v *Vector) {
		nodes = append(nodes, [2]int64{int64(v.Len), int64(v.Nulls)})
		for _, b := range v.Buffers {
			buffers = append(buffers, [2]int64{body, b.Len})
			body += (b.Len + bodyAlign - 1) &^ (bodyAlign - 1)
		}
		for i := range v.Children {
			walk(&v.Children[i])
		}
	}
	for i := range cols {
		walk(&cols[i])
	}

	fb := flatbuffers.NewBuilder(1024)
	pairs := func(list [][2]int64) flatbuffers.UOffsetT {
		fb.StartVector(16, len(list), 8)
		for i := len(list) - 1; i >= 0; i-- {
			fb.Prep(8, 16)
			fb.PrependInt64(list[i][1])
			fb.PrependInt64(list[i][0])
		}
		return fb.EndVector(len(list))
	}
	bufferList := pairs(buffers)
	nodeList := pairs(nodes)
	fb.StartObject(5)
	fb.PrependInt64Slot(0, int64(rows), 0)
	fb.PrependUOffsetTSlot(1, nodeList, 0)
	fb.PrependUOffsetTSlot(2, bufferList, 0)
	batch := fb.EndObject()
	fb.StartObject(5)
	fb.PrependInt64Slot(3, body, 0)
	fb.PrependUOffsetTSlot(2, batch, 0)
	fb.PrependInt16Slot(0, metadataV5, 0)
	fb.PrependByteSlot(1, headerRecordBatch, 0)
	fb.Finish(fb.EndObject())
	meta := fb.FinishedBytes()

	start := len(schemaMessage) + 8 + len(meta)
	pad := -start & (bodyAlign - 1) // the body starts aligned
	out := alignedBytes(start + pad + int(body) + len(endOfStream))[:0]
	out = append(out, schemaMessage...)
	out = binary.LittleEndian.AppendUint32(out, continuation)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(meta)+pad))
	out = append(out, meta...)
	out = append(out, make([]byte, pad)...)
	var zeros [bodyAlign]byte
	var put func(v *Vector)
	put = func(v *Vector) {
		for _, b := range v.Buffers {
			for _, p := range b.Pieces {
				out = append(out, p...)
			}
			out = append(out, zeros[:-b.Len&(bodyAlign-1)]...)
		}
		for i := range v.Children {
			put(&v.Children[i])
		}
	}
	for i := range cols {
		put(&cols[i])
	}
	return append(out, endOfStream...)
}

var errBroken = errors.New("broken message")

// nextMessage splits the first message off b: its flatbuffer and what follows
// it, which begins with the body. size is the length of prefix and flatbuffer.
func nextMessage(b []byte) (meta, rest []byte, size int, err error) {
	if len(b) < 8 || binary.LittleEndian.Uint32(b) != continuation {
		return nil, nil, 0, fmt.Errorf("%w: no message of an Arrow stream where one should be", ErrDataLoss)
	}
	n := int64(binary.LittleEndian.Uint32(b[4:]))
	if n < 8 || n > int64(len(b)-8) {
		return nil, nil, 0, fmt.Errorf("%w: message of %d bytes where %d are left", ErrDataLoss, n, len(b)-8)
	}
	return b[8 : 8+n], b[8+n:], int(8 + n), nil
}

// decodeStream reads an IPC stream of one record batch in place: the views
// point into b, which must be aligned to 8 bytes. want is the schema it must
// have, wantMessage its encoding. All that the views can reach is checked.
func decodeStream(b []byte, want *arrow.Schema, wantMessage []byte,
	orWant *arrow.Schema) (cols []view, rows int, err error) {
	defer func() {
		if p := recover(); p != nil { // an offset in a flatbuffer led out of it
			cols, rows, err = nil, 0, fmt.Errorf("%w: %w: it leads out of itself", ErrDataLoss, errBroken)
		}
	}()
	rest, ok := bytes.CutPrefix(b, wantMessage)
	if !ok { // perhaps encoded by another version of the library
		var size int
		if _, rest, size, err = nextMessage(b); err != nil {
			return nil, 0, err
		}
		s, err := decodeSchema(b[:size])
		if err != nil {
			return nil, 0, err
		}
		if !s.Equal(want) && !s.Equal(orWant) {
			return nil, 0, fmt.Errorf("%w: schema of the chunk is %s, the snapshot says %s", ErrDataLoss, s, want)
		}
	}
	meta, rest, _, err := nextMessage(rest)
	if err != nil {
		return nil, 0, err
	}

	msg := rootTable(meta)
	if t := msg.GetByteSlot(6, 0); t != headerRecordBatch {
		return nil, 0, fmt.Errorf("%w: message of type %d, want a record batch", ErrDataLoss, t)
	}
	bodyLen := msg.GetInt64Slot(10, 0)
	if bodyLen < 0 || bodyLen > int64(len(rest)) {
		return nil, 0, fmt.Errorf("%w: body of %d bytes where %d are left", ErrDataLoss, bodyLen, len(rest))
	}
	if !bytes.Equal(rest[bodyLen:], endOfStream) {
		return nil, 0, fmt.Errorf("%w: no end of the stream after its record batch", ErrDataLoss)
	}
	var batch flatbuffers.Table
	o := flatbuffers.UOffsetT(msg.Offset(8))
	if o == 0 {
		return nil, 0, fmt.Errorf("%w: message without a header", ErrDataLoss)
	}
	msg.Union(&batch, o)
	if batch.Offset(10) != 0 {
		return nil, 0, fmt.Errorf("%w: compressed record batch, want plain", ErrDataLoss)
	}
	n := batch.GetInt64Slot(4, 0)
	if n < 0 || n > math.MaxInt32 {
		return nil, 0, fmt.Errorf("%w: record batch of %d rows", ErrDataLoss, n)
	}
	l := loader{body: rest[:bodyLen:bodyLen], nodes: pairList(&batch, 6), buffers: pairList(&batch, 8)}
	cols = make([]view, want.NumFields())
	for i, f := range want.Fields() {
		if cols[i], err = l.load(f, int(n)); err != nil {
			return nil, 0, fmt.Errorf("column %q: %w", f.Name, err)
		}
	}
	if len(l.nodes) > 0 || len(l.buffers) > 0 {
		return nil, 0, fmt.Errorf("%w: record batch has more buffers than its schema", ErrDataLoss)
	}
	return cols, int(n), nil
}
