package source

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/schema"
)

// Numbers are the values of a list of integers, as little-endian bytes. A list of
// thousands of token ids as []any would box each value.
type Numbers []byte

// countColumn is the column with the number of tokens of each sample. Samplers by length
// use it.
const countColumn = "n_tokens"

// tokenColumn is the column of token ids if the source has no name for it.
const tokenColumn = "tokens"

// tokenTypes are the types of token ids by name.
var tokenTypes = map[string]arrow.FixedWidthDataType{
	"int8": arrow.PrimitiveTypes.Int8.(*arrow.Int8Type), "uint8": arrow.PrimitiveTypes.Uint8.(*arrow.Uint8Type),
	"int16": arrow.PrimitiveTypes.Int16.(*arrow.Int16Type), "uint16": arrow.PrimitiveTypes.Uint16.(*arrow.Uint16Type),
	"int32": arrow.PrimitiveTypes.Int32.(*arrow.Int32Type), "uint32": arrow.PrimitiveTypes.Uint32.(*arrow.Uint32Type),
	"int64": arrow.PrimitiveTypes.Int64.(*arrow.Int64Type), "uint64": arrow.PrimitiveTypes.Uint64.(*arrow.Uint64Type),
}

// numbers returns a decoder for bytes that are integers of type t.
func numbers(t arrow.FixedWidthDataType) func(b []byte) (any, error) {
	return func(b []byte) (any, error) {
		if len(b)%t.Bytes() != 0 {
			return nil, fmt.Errorf("%d bytes are no whole number of %s, of %d bytes each", len(b), t, t.Bytes())
		}
		return Numbers(b), nil
	}
}

// appendNumbers appends the values of a list to the builder of its values.
func appendNumbers(values array.Builder, b Numbers) error {
	switch values := values.(type) {
	case *array.Int8Builder:
		appendEach(values.Reserve, values.UnsafeAppend, b, 1, func(b []byte) int8 { return int8(b[0]) })
	case *array.Uint8Builder:
		values.AppendValues(b, nil)
	case *array.Int16Builder:
		appendEach(values.Reserve, values.UnsafeAppend, b, 2, func(b []byte) int16 {
			return int16(binary.LittleEndian.Uint16(b))
		})
	case *array.Uint16Builder:
		appendEach(values.Reserve, values.UnsafeAppend, b, 2, binary.LittleEndian.Uint16)
	case *array.Int32Builder:
		appendEach(values.Reserve, values.UnsafeAppend, b, 4, func(b []byte) int32 {
			return int32(binary.LittleEndian.Uint32(b))
		})
	case *array.Uint32Builder:
		appendEach(values.Reserve, values.UnsafeAppend, b, 4, binary.LittleEndian.Uint32)
	case *array.Int64Builder:
		appendEach(values.Reserve, values.UnsafeAppend, b, 8, func(b []byte) int64 {
			return int64(binary.LittleEndian.Uint64(b))
		})
	case *array.Uint64Builder:
		appendEach(values.Reserve, values.UnsafeAppend, b, 8, binary.LittleEndian.Uint64)
	default:
		return fmt.Errorf("no way to append numbers to a list of %s", values.Type())
	}
	return nil
}

// appendFixedNumbers appends a list of fixed size. Another number of values is an error.
func appendFixedNumbers(b *array.FixedSizeListBuilder, v Numbers) error {
	// The number of values is checked afterwards, because it depends on the builder's
	// type.
	before := b.ValueBuilder().Len()
	b.Append(true)
	if err := appendNumbers(b.ValueBuilder(), v); err != nil {
		return err
	}
	if n, want := b.ValueBuilder().Len()-before, int(b.Type().(*arrow.FixedSizeListType).Len()); n != want {
		return fmt.Errorf("got %d numbers, want a list of %d", n, want)
	}
	return nil
}

// appendEach appends the values in b, each of size bytes. It reserves room once.
func appendEach[T any](reserve func(int), add func(T), b []byte, size int, read func([]byte) T) {
	reserve(len(b) / size)
	for ; len(b) >= size; b = b[size:] {
		add(read(b))
	}
}

// addTokenCount adds a column with the length of the lists in the column that
// ReadOptions.Count names. The error wraps schema.ErrInvalid if that is no column of
// lists.
func (r *Reader) addTokenCount(own []arrow.Field) error {
	name := r.opts.Count
	at := slices.IndexFunc(own, func(f arrow.Field) bool { return f.Name == name })
	if name == "" {
		return nil
	}
	if at < 0 {
		return fmt.Errorf("%w: --count-tokens: there is no column %s of lists", schema.ErrInvalid, Quoted(name))
	}
	list, ok := own[at].Type.(arrow.ListLikeType)
	if !ok {
		return fmt.Errorf("%w: --count-tokens: column %s is %s, and no list", schema.ErrInvalid, Quoted(name),
			schema.ShownType(own[at].Type))
	}
	if !r.adds(own, countColumn) {
		return nil
	}
	// Numbers are bytes, so their count needs the size of a value. []any and cells have a
	// length.
	size := 1
	if t := tokenTypes[list.Elem().Name()]; t != nil {
		size = t.Bytes()
	}
	r.meta = append(r.meta, arrow.Field{Name: countColumn, Type: arrow.PrimitiveTypes.Int64, Nullable: true})
	r.added = append(r.added, func(s *slot) any {
		switch v := s.Meta[at].(type) {
		case Numbers:
			return int64(len(v) / size)
		case []any:
			return int64(len(v))
		case Cell:
			if list, ok := v.Array.(array.ListLike); ok && !list.IsNull(v.Row) {
				start, end := list.ValueOffsets(v.Row)
				return end - start
			}
		}
		return nil
	})
	return nil
}

// tokensKey is the metadata key of a blob field with token ids; its value is their type.
const tokensKey = "bowstring.tokens"

// tokenBlobField returns the field of blobs with token ids of type t, in little-endian
// order.
func tokenBlobField(name string, t arrow.DataType) arrow.Field {
	f := schema.BlobField(name, "", false)
	f.Metadata = arrow.NewMetadata(append(f.Metadata.Keys(), tokensKey), append(f.Metadata.Values(), t.Name()))
	return f
}

// asTokens turns columns of bytes that Options.Tokens names into lists, and records which
// of them exist.
type asTokens struct {
	types map[string]string
	found map[string]bool
}

// decoder returns the type and decoder for a column of bytes with token ids; nil if the
// column is not named.
func (a *asTokens) decoder(name string) (arrow.DataType, func([]byte) (any, error), error) {
	named, ok := a.types[name]
	if !ok {
		return nil, nil, nil
	}
	if a.found == nil {
		a.found = map[string]bool{}
	}
	a.found[name] = true
	t, ok := tokenTypes[named]
	if !ok {
		return nil, nil, fmt.Errorf("--tokens %s=%s: want uint16, uint32, int32 or int64, or another integer",
			Quoted(name), Quoted(named))
	}
	return arrow.ListOf(t), numbers(t), nil
}

// check returns an error for a name that no column of bytes has.
func (a *asTokens) check() error {
	for _, name := range slices.Sorted(maps.Keys(a.types)) {
		if !a.found[name] {
			return fmt.Errorf("%w: --tokens: there is no column %s of bytes", schema.ErrInvalid, Quoted(name))
		}
	}
	return nil
}

// listBytes returns the size in the batch of the lists of numbers among a sample's
// values.
func listBytes(meta []any) (n int64) {
	for _, v := range meta {
		switch v := v.(type) {
		case Numbers:
			n += int64(len(v))
		case []any:
			n += 8 * int64(len(v))
		case Cell:
			if list, ok := v.Array.(array.ListLike); ok && !list.IsNull(v.Row) {
				start, end := list.ValueOffsets(v.Row)
				n += 8 * (end - start)
			}
		}
	}
	return n
}
