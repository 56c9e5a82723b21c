package schema

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/apache/arrow/go/v17/arrow"
	flatbuffers "github.com/google/flatbuffers/go"

	"bowstring/schema/ipc"
)

// The bytes of a page are an Arrow IPC stream of one record batch, read in place.

// bodyAlign is the alignment of every buffer of a page: a cache line, as Arrow
// recommends.
const bodyAlign = 64

// schemaLimits bound the schemas of snapshots.
var schemaLimits = ipc.SchemaLimits{Bytes: math.MaxInt32, Tables: 1 << 17, Depth: maxTypeDepth + 1}

// encodeSchema returns the IPC message of a schema, with its prefix.
func encodeSchema(s *arrow.Schema) ([]byte, error) {
	if s == nil {
		return nil, fmt.Errorf("%w: no schema to encode", ErrInvalid)
	}
	header, err := ipc.EncodeSchema(s)
	if err != nil {
		return nil, err
	}
	return ipc.AppendMessage(nil, header, 8), nil
}

// decodeSchema reads the IPC message of a schema.
func decodeSchema(b []byte) (*arrow.Schema, error) {
	header, _, err := ipc.NextMessage(b)
	var s *arrow.Schema
	if err == nil {
		s, _, err = ipc.DecodeSchema(header, schemaLimits, ipc.Unbounded{})
	}
	if err != nil {
		return nil, fmt.Errorf("%w: decode schema: %w", ErrDataLoss, err)
	}
	return s, nil
}

// encodeStream makes an IPC stream of one record batch. Every buffer starts at a multiple
// of 64 bytes from the beginning of the stream and is padded with zeros. Equal content
// gives equal bytes, which the Arrow library's writer does not guarantee.
func encodeStream(schemaMessage []byte, rows int, cols []Vector) []byte {
	var nodes, buffers [][2]int64
	var body int64
	for i := range cols {
		cols[i].each(func(v *Vector) {
			nodes = append(nodes, [2]int64{int64(v.Len), int64(v.Nulls)})
			for _, b := range v.Buffers {
				buffers = append(buffers, [2]int64{body, b.Len})
				body += (b.Len + bodyAlign - 1) &^ (bodyAlign - 1)
			}
		})
	}
	header := ipc.EncodeBatch(flatbuffers.NewBuilder(1024), int64(rows), nodes, buffers, body)
	out := alignedBytes(len(schemaMessage) + len(header) + 2*bodyAlign + int(body) + len(ipc.EndOfStream))[:0]
	out = ipc.AppendMessage(append(out, schemaMessage...), header, bodyAlign)
	var zeros [bodyAlign]byte
	for i := range cols {
		cols[i].each(func(v *Vector) {
			for _, b := range v.Buffers {
				for _, p := range b.Pieces {
					out = append(out, p...)
				}
				out = append(out, zeros[:-b.Len&(bodyAlign-1)]...)
			}
		})
	}
	return append(out, ipc.EndOfStream...)
}

// each visits a column and its children, depth first.
func (v *Vector) each(visit func(*Vector)) {
	visit(v)
	for i := range v.Children {
		v.Children[i].each(visit)
	}
}

// decodeStream parses an IPC stream of one record batch in place: the views point into b,
// which must be aligned to 8 bytes. want is the expected schema, wantMessage its
// encoding. Everything that the views can reach is checked.
func decodeStream(b []byte, want *arrow.Schema, wantMessage []byte) ([]view, int, error) {
	rest, ok := bytes.CutPrefix(b, wantMessage)
	if !ok { // maybe encoded by another version of the library
		s, err := decodeSchema(b)
		if err != nil {
			return nil, 0, err
		}
		if !s.Equal(want) {
			return nil, 0, fmt.Errorf("%w: schema of the chunk is %s, the snapshot says %s", ErrDataLoss, s, want)
		}
		_, rest, _ = ipc.NextMessage(b) // decodeSchema has parsed this message
	}
	columns, rows, err := decodeBatch(rest, want)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrDataLoss, err)
	}
	cols := make([]view, len(columns))
	for i := range columns {
		cols[i] = columnView(&columns[i])
		if err := cols[i].checkNulls(want.Field(i)); err != nil {
			return nil, 0, fmt.Errorf("column %q: %w", want.Field(i).Name, err)
		}
	}
	return cols, rows, nil
}

// decodeBatch parses the message of a record batch, which ends its stream.
func decodeBatch(b []byte, s *arrow.Schema) ([]ipc.Column, int, error) {
	header, rest, err := ipc.NextMessage(b)
	if err != nil {
		return nil, 0, err
	}
	body, ok := bytes.CutSuffix(rest, ipc.EndOfStream)
	if !ok {
		return nil, 0, errors.New("no end of the stream after its record batch")
	}
	return stored.ReadColumns(s, header, body)
}

// stored are the options for record batches of a store: they are completely in memory,
// and written by this program.
var stored = ipc.Options{MaxBatchRows: math.MaxInt32, Strict: true, Memory: ipc.Unbounded{}, Kept: ipc.Unbounded{}}

// checkNulls checks that a column has nulls only where its field permits them.
func (v *view) checkNulls(f arrow.Field) error {
	if v.nulls > 0 && !f.Nullable {
		return fmt.Errorf("%w: %d nulls in %d rows, which may have none", ErrDataLoss, v.nulls, v.n)
	}
	if nested, ok := f.Type.(arrow.NestedType); ok {
		for i, sub := range nested.Fields() {
			if err := v.children[i].checkNulls(sub); err != nil {
				return err
			}
		}
	}
	return nil
}
