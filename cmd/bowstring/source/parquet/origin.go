package parquet

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"
)

// Places of fields in tables of Arrow's metadata.
const (
	slotHeader        = 8  // of a Message: the schema
	slotFields        = 6  // of a Schema
	slotSchemaPairs   = 8  // of a Schema: its metadata
	slotFieldChildren = 14 // of a Field
	slotFieldPairs    = 16 // of a Field: its metadata
)

// maxOriginFields bounds the fields of a stored schema, nested ones included: a few bytes can name one many times.
const maxOriginFields = 1 << 16

// origin is the Arrow schema that writers put into the metadata: it says more of types than Parquet does. It is nil if
// there is none.
func (f *File) origin() (*arrow.Schema, error) {
	text := f.reader.MetaData().KeyValueMetadata().FindValue("ARROW:schema")
	if text == nil {
		return nil, nil //nolint:nilnil // none
	}
	b, err := base64.StdEncoding.DecodeString(*text)
	if err != nil {
		if b, err = base64.RawStdEncoding.DecodeString(*text); err != nil {
			return nil, fmt.Errorf("its ARROW:schema: %w", err)
		}
	}
	if err := checkOrigin(b); err != nil {
		return nil, fmt.Errorf("its ARROW:schema: %w", err)
	}
	r, err := ipc.NewReader(bytes.NewReader(b), ipc.WithAllocator(bounded{memory.DefaultAllocator, len(b)}))
	if err != nil {
		return nil, fmt.Errorf("its ARROW:schema: %w", err)
	}
	defer r.Release()
	return r.Schema(), nil
}

// checkOrigin looks whether the lists in a message are as long as they say, for which the library makes room. It panics
// about other malformed bytes.
func checkOrigin(b []byte) error {
	if len(b) >= 8 && binary.LittleEndian.Uint32(b) == 0xffffffff {
		b = b[4:]
	}
	if len(b) < 8 || int64(binary.LittleEndian.Uint32(b)) > int64(len(b)-4) {
		return errors.New("it is cut short")
	}
	b = b[4:]
	message := flatbuffers.Table{Bytes: b, Pos: flatbuffers.GetUOffsetT(b)}
	at := flatbuffers.UOffsetT(message.Offset(slotHeader))
	if at == 0 {
		return errors.New("it is no message of a schema")
	}
	var s flatbuffers.Table
	message.Union(&s, at)
	if _, err := listLength(&s, slotSchemaPairs); err != nil {
		return err
	}
	seen := 0
	return checkFields(&s, slotFields, &seen, 0)
}

func checkFields(t *flatbuffers.Table, slot flatbuffers.VOffsetT, seen *int, depth int) error {
	n, err := listLength(t, slot)
	if err != nil || n == 0 {
		return err
	}
	if *seen += n; *seen > maxOriginFields || depth > maxDepth {
		return fmt.Errorf("it has more than %d fields, or fields more than %d deep", maxOriginFields, maxDepth)
	}
	start := t.Vector(flatbuffers.UOffsetT(t.Offset(slot)))
	for i := range n {
		field := flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(start + flatbuffers.UOffsetT(4*i))}
		if _, err := listLength(&field, slotFieldPairs); err != nil {
			return err
		}
		if err := checkFields(&field, slotFieldChildren, seen, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// listLength is how many tables a list holds.
func listLength(t *flatbuffers.Table, slot flatbuffers.VOffsetT) (int, error) {
	at := flatbuffers.UOffsetT(t.Offset(slot))
	if at == 0 {
		return 0, nil
	}
	n := t.VectorLen(at)
	if n < 0 || n > len(t.Bytes)/4 {
		return 0, fmt.Errorf("a list of %d in %d bytes", n, len(t.Bytes))
	}
	return n, nil
}
