package apply

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"bowstring/schema"
)

// A frame is the length of its header in four bytes, little-endian, a header of JSON, and
// a body whose length follows from the header. All numbers in bodies are little-endian.
// The header is JSON because both ends can print it; the cells, which are nearly all of
// the bytes, are not encoded.

// maxHeader bounds the header of a frame: it holds a few numbers for each cell of a
// batch.
const maxHeader = 64 << 20

// hello is the header of the client's first frame, which has no body.
type hello struct {
	// Operators are those of the ticket, written in full.
	Operators json.RawMessage `json:"operators"`
	// Seed is the one of the ticket's shuffle.
	Seed uint64 `json:"seed"`
	// Workers is how many cells are made at once; 0 for one on each CPU.
	Workers int `json:"workers"`
}

// welcome answers hello: it has the type of each column's cells, or an error.
type welcome struct {
	Forms map[string]*schema.MadeForm `json:"forms,omitempty"`
	Error string                      `json:"error,omitempty"`
	Code  string                      `json:"code,omitempty"`
}

// asked is the header of a batch of blobs. Its body has Rows positions of eight bytes
// each, and then the blobs, column by column.
type asked struct {
	Epoch   uint64       `json:"epoch"`
	Rows    int          `json:"rows"`
	Columns []blobColumn `json:"columns"`
}

// blobColumn is a column of a batch of blobs.
type blobColumn struct {
	Name string `json:"name"`
	// Sizes are the sizes of the blobs in bytes; -1 for a null.
	Sizes []int64 `json:"sizes"`
}

// answered is the header of a batch of cells. Its body has the cells, column by column. A
// null takes no bytes, or as many zeros as a cell has where all cells of the column have
// one size.
type answered struct {
	Columns []madeColumn `json:"columns"`
	Faults  []fault      `json:"faults,omitempty"`
	Error   string       `json:"error,omitempty"`
	Code    string       `json:"code,omitempty"`
}

// madeColumn is a column of a batch of cells.
type madeColumn struct {
	Name string `json:"name"`
	// Bytes is the length of the column in the body.
	Bytes int64 `json:"bytes"`
	// Sizes are the sizes of the cells in the body, in bytes; -1 for a null.
	Sizes []int64 `json:"sizes"`
	// Shapes are those of tensors that differ in shape; null for a null.
	Shapes [][]int32 `json:"shapes,omitempty"`
	// Params are the random parameters of each cell, JSON as text; null for a null.
	Params []*string `json:"params"`
}

// fault is a cell that could not be made.
type fault struct {
	Row      int    `json:"row"`
	Position int64  `json:"position"`
	Column   string `json:"column"`
	Operator string `json:"operator,omitempty"`
	Cause    string `json:"cause"`
	Code     string `json:"code"`
}

// codeOf is the gRPC code of an error, by name: the client raises the same exceptions for
// operators that run here and on the server.
func codeOf(err error) string {
	switch {
	case errors.Is(err, schema.ErrInvalid):
		return "INVALID_ARGUMENT"
	case errors.Is(err, schema.ErrLimit):
		return "RESOURCE_EXHAUSTED"
	case errors.Is(err, schema.ErrDataLoss):
		return "DATA_LOSS"
	case errors.Is(err, schema.ErrNotSupported):
		return "UNIMPLEMENTED"
	case errors.Is(err, schema.ErrUnavailable):
		return "UNAVAILABLE"
	}
	return "INTERNAL"
}

// readHeader reads the header of a frame. It returns io.EOF if the input ends before a
// frame, and schema.ErrInvalid if it ends within one.
func readHeader(r io.Reader, into any) error {
	var prefix [4]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return err
		}
		return fmt.Errorf("%w: a frame breaks off: %w", schema.ErrInvalid, err)
	}
	n := binary.LittleEndian.Uint32(prefix[:])
	if n > maxHeader {
		return fmt.Errorf("%w: a header of %d bytes, want at most %d", schema.ErrInvalid, n, maxHeader)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return fmt.Errorf("%w: a header breaks off: %w", schema.ErrInvalid, err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%w: a header: %w", schema.ErrInvalid, err)
	}
	return nil
}

// writeHeader writes the header of a frame in one write.
func writeHeader(w io.Writer, header any) error {
	b, err := json.Marshal(header)
	if err != nil {
		return fmt.Errorf("a header: %w", err)
	}
	_, err = w.Write(append(binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(b)), uint32(len(b))), b...))
	return err
}

// readBody checks the header of a batch against the known columns and reads its body, of
// at most most bytes. The blobs are slices of the body. All sizes are checked before
// memory is allocated.
func (a *asked) readBody(r io.Reader, known map[string]bool, most int64) (positions []int64, blobs [][]schema.Blob, err error) {
	if a.Rows < 0 || a.Rows > schema.MaxBatch {
		return nil, nil, fmt.Errorf("%w: rows: got %d, want 0 to %d", schema.ErrInvalid, a.Rows, schema.MaxBatch)
	}
	total := 8 * int64(a.Rows)
	for _, c := range a.Columns {
		if !known[c.Name] || len(c.Sizes) != a.Rows {
			return nil, nil, fmt.Errorf("%w: %d sizes of column %.64q, want %d of one that has operators",
				schema.ErrInvalid, len(c.Sizes), c.Name, a.Rows)
		}
		for _, n := range c.Sizes {
			if total += max(n, 0); n < -1 || n > schema.MaxBatchBytes || total > most {
				return nil, nil, fmt.Errorf("%w: a batch of more than %d bytes, or a blob of %d", schema.ErrLimit, most, n)
			}
		}
	}
	body := make([]byte, total)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, nil, fmt.Errorf("%w: a body breaks off: %w", schema.ErrInvalid, err)
	}
	positions = make([]int64, a.Rows)
	for i := range positions {
		positions[i] = int64(binary.LittleEndian.Uint64(body[8*i:]))
	}
	rest := body[8*a.Rows:]
	blobs = make([][]schema.Blob, len(a.Columns))
	for i, c := range a.Columns {
		blobs[i] = make([]schema.Blob, a.Rows)
		for row, n := range c.Sizes {
			if n >= 0 {
				blobs[i][row], rest = schema.NewBlob(rest[:n:n], nil), rest[n:]
			}
		}
	}
	return positions, blobs, nil
}
