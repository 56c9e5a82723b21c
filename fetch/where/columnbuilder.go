package where

import (
	little "encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// columnBuilder collects the values of a column.
type columnBuilder struct {
	id     arrow.Type
	fixed  []byte // values of a fixed width, or bits
	ends   []int32
	text   []byte
	absent []int // rows that are null
	rows   int
}

func builderOf(t arrow.DataType, rows int) *columnBuilder {
	b := &columnBuilder{id: t.ID()}
	switch b.id {
	case arrow.STRING:
		b.ends = append(make([]int32, 0, rows+1), 0)
	case arrow.BOOL:
		b.fixed = make([]byte, 0, (rows+7)/8)
	default:
		b.fixed = make([]byte, 0, 8*rows)
	}
	return b
}

// errValue says that an expression gave a value of another type than it was compiled to.
var errValue = errors.New("it gives a value of another type here")

// fault adds a null, in columns of a bool, too.
func (b *columnBuilder) fault() {
	if b.id == arrow.BOOL {
		b.absent = append(b.absent, b.rows)
	}
	_ = b.add(nil) // which every column can have
}

func (b *columnBuilder) add(v any) error {
	if v == nil && b.id != arrow.BOOL {
		b.absent = append(b.absent, b.rows)
	}
	switch b.id {
	case arrow.BOOL:
		if b.rows%8 == 0 {
			b.fixed = append(b.fixed, 0)
		}
		if v == true {
			b.fixed[b.rows/8] |= 1 << (b.rows % 8)
		}
	case arrow.STRING:
		text, ok := v.(string)
		switch {
		case v != nil && !ok:
			return errValue
		case len(text) > MaxMadeText:
			return fmt.Errorf("it gives a text of %d bytes, at most %d are allowed where a column is made", len(text),
				MaxMadeText)
		case !utf8.ValidString(text):
			return errors.New("it gives bytes that are no UTF-8, and no text")
		}
		b.text = append(b.text, text...)
		b.ends = append(b.ends, int32(len(b.text)))
	default:
		bits, err := bitsOf(b.id, v)
		if err != nil {
			return err
		}
		b.fixed = little.LittleEndian.AppendUint64(b.fixed, bits)
	}
	b.rows++
	return nil
}

// maxSeconds is how far from 1970 a time may be whose microseconds an int64 holds.
const maxSeconds = math.MaxInt64/1_000_000 - 1

// bitsOf are the eight bytes of a value; zero of null.
func bitsOf(id arrow.Type, v any) (uint64, error) {
	switch v := v.(type) {
	case nil:
		return 0, nil
	case time.Time:
		if id == arrow.TIMESTAMP {
			if s := v.Unix(); s > maxSeconds || s < -maxSeconds {
				return 0, errors.New("it gives a time that is more than 292,000 years away, which the column does not hold")
			}
			return uint64(v.UnixMicro()), nil
		}
	case time.Duration:
		if id == arrow.DURATION {
			return uint64(v.Microseconds()), nil
		}
	case int:
		switch id {
		case arrow.INT64:
			return uint64(v), nil
		case arrow.UINT64:
			if v < 0 {
				return 0, fmt.Errorf("it gives %d, which no uint64 holds", v)
			}
			return uint64(v), nil
		case arrow.FLOAT64:
			return math.Float64bits(float64(v)), nil
		}
	case uint64: // beyond an int
		switch id {
		case arrow.INT64:
			return 0, fmt.Errorf("it gives %d, which no int64 holds", v)
		case arrow.UINT64:
			return v, nil
		case arrow.FLOAT64:
			return math.Float64bits(float64(v)), nil
		}
	case float64:
		if id == arrow.FLOAT64 {
			return math.Float64bits(v), nil
		}
	}
	return 0, errValue
}

// vector is the column of what was added.
func (b *columnBuilder) vector(t arrow.DataType) schema.Vector {
	v := schema.Vector{Type: t, Len: b.rows, Nulls: len(b.absent), Buffers: []schema.Buffer{{}}}
	if v.Nulls > 0 {
		valid := make([]byte, (b.rows+7)/8)
		for i := range b.rows {
			valid[i/8] |= 1 << (i % 8)
		}
		for _, i := range b.absent {
			valid[i/8] &^= 1 << (i % 8)
		}
		v.Buffers[0] = bufferOf(valid)
	}
	if b.id != arrow.STRING {
		v.Buffers = append(v.Buffers, bufferOf(b.fixed))
		return v
	}
	offsets := make([]byte, 0, 4*len(b.ends))
	for _, end := range b.ends {
		offsets = little.LittleEndian.AppendUint32(offsets, uint32(end))
	}
	v.Buffers = append(v.Buffers, bufferOf(offsets), bufferOf(b.text))
	return v
}

func bufferOf(b []byte) schema.Buffer {
	if len(b) == 0 {
		return schema.Buffer{}
	}
	return schema.Buffer{Pieces: [][]byte{b}, Len: int64(len(b))}
}
