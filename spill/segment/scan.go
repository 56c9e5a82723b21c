package segment

import (
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/zeebo/xxh3"

	"bowstring/schema"
)

// DamageError is the error Scan yields for a stretch of a segment that holds no
// good record. It is a schema.ErrDataLoss.
type DamageError struct {
	Segment uint32
	Offset  int64 // where it begins
	Length  int64 // up to the next record header, or to the end of the file
	Reason  string
}

func (d *DamageError) Error() string {
	return fmt.Sprintf("segment %d, %d bytes at offset %d: %s", d.Segment, d.Length, d.Offset, d.Reason)
}

// Unwrap makes every DamageError a schema.ErrDataLoss.
func (d *DamageError) Unwrap() error { return schema.ErrDataLoss }

// ScanOptions says what Scan looks at.
type ScanOptions struct {
	// From is the offset of a record header to start at; 0 for the first.
	From int64
	// Payloads also compares each payload with its checksum.
	Payloads bool
}

const (
	scanWindow   = 4 << 10  // bytes read for a header and the short records after it
	verifyWindow = 64 << 10 // the same when payloads are read anyway
)

// Scan reads the records of segment id, of size bytes, in file order. For what
// is not a good record it yields a *DamageError and goes on at the next header it
// finds; a caller that trusts only an unbroken run stops there. Any other error
// is one of reading, and the last thing yielded.
//
// A payload could hold the image of a record of this very segment; Scan can
// take it for one only inside damage, and then its key still names its content.
func Scan(r io.ReaderAt, id uint32, size int64, opts ScanOptions) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		window := scanWindow
		if opts.Payloads {
			window = verifyWindow
		}
		w := &reader{r: r, size: size, buf: make([]byte, window)}
		at := opts.From
		if at == 0 {
			h, err := w.at(0, HeaderSize)
			switch {
			case errors.Is(err, io.ErrUnexpectedEOF):
				yield(Record{}, &DamageError{id, 0, size, "the file is shorter than its header"})
				return
			case err != nil:
				yield(Record{}, fmt.Errorf("read segment %d: %w", id, err))
				return
			}
			if err := checkFileHeader(h, id); err != nil {
				if !yield(Record{}, &DamageError{id, 0, HeaderSize, err.Error()}) {
					return
				}
			}
			at = HeaderSize
		}
		for at < size {
			rec, damage, next, err := w.record(id, at, opts.Payloads)
			switch {
			case err != nil:
				yield(Record{}, fmt.Errorf("read segment %d at offset %d: %w", id, at, err))
				return
			case damage != nil:
				if !yield(Record{}, damage) {
					return
				}
			case !yield(rec, nil):
				return
			}
			at = next
		}
	}
}

// reader is a window that moves over a file.
type reader struct {
	r    io.ReaderAt
	size int64
	buf  []byte
	off  int64 // of the window in the file
	n    int   // valid bytes in it
}

// at returns n bytes at off, valid until the next call. io.ErrUnexpectedEOF
// says that the file has fewer.
func (w *reader) at(off int64, n int) ([]byte, error) {
	if off+int64(n) > w.size {
		return nil, io.ErrUnexpectedEOF
	}
	if off < w.off || off+int64(n) > w.off+int64(w.n) {
		want := int(min(int64(len(w.buf)), w.size-off))
		got, err := w.r.ReadAt(w.buf[:want], off)
		if got < n {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		w.off, w.n = off, got
	}
	i := int(off - w.off)
	return w.buf[i : i+n], nil
}

// record reads the record at offset at and says where the next one begins.
func (w *reader) record(id uint32, at int64, payloads bool) (Record, *DamageError, int64, error) {
	h, err := w.at(at, HeaderSize)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return Record{}, &DamageError{id, at, w.size - at, "the file ends within a record header"}, w.size, nil
	} else if err != nil {
		return Record{}, nil, 0, err
	}
	rec, reason := decodeRecordHeader(h, id, at, w.size)
	if reason != "" {
		next, err := w.nextHeader(id, at+Align)
		if err != nil {
			return Record{}, nil, 0, err
		}
		return Record{}, &DamageError{id, at, next - at, reason}, next, nil
	}
	next := min(at+Footprint(rec.Length), w.size)
	if payloads && !rec.Void {
		sum, err := w.sum(rec.Offset, rec.Length)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return Record{}, &DamageError{id, at, w.size - at, "the file was cut short"}, w.size, nil
		} else if err != nil {
			return Record{}, nil, 0, err
		}
		if sum != rec.Sum {
			return Record{}, &DamageError{id, at, next - at, "the payload's checksum is wrong"}, next, nil
		}
	}
	return rec, nil, next, nil
}

// nextHeader finds the first good record header at or after off.
func (w *reader) nextHeader(id uint32, off int64) (int64, error) {
	for ; off+HeaderSize <= w.size; off += Align {
		h, err := w.at(off, HeaderSize)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			break
		} else if err != nil {
			return 0, err
		}
		if _, reason := decodeRecordHeader(h, id, off, w.size); reason == "" {
			return off, nil
		}
	}
	return w.size, nil
}

func (w *reader) sum(off, n int64) (schema.Sum, error) {
	sum := xxh3.New()
	for n > 0 {
		b, err := w.at(off, int(min(n, int64(len(w.buf)))))
		if err != nil {
			return 0, err
		}
		_, _ = sum.Write(b) // never fails
		off += int64(len(b))
		n -= int64(len(b))
	}
	return schema.Sum(sum.Sum64()), nil
}
