package segment

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// Segment is one file of blobs and its mapping. It is the schema.Owner of the
// blobs read from it.
//
// It is kept by references: one of the Set that opened it, one of each write
// under way and one of each blob handed out. The last one to go unmaps and
// closes it; a count of zero is final.
type Segment struct {
	id   uint32
	path string
	file *os.File
	// direct is the file once more, for writes past the page cache; nil if there are none. io is the set's.
	direct *os.File
	io     *directIO
	// present is the set's, once the segment is in it.
	present *presence
	// mem is the mapping. It covers all that the file may grow to, which is capacity;
	// only what lies below end is backed by data.
	mem      []byte
	capacity int64
	lent
	model *Model // in place of file and mem, if not nil
	refs  atomic.Int64
	end   atomic.Int64 // data ends here: the limit of every read

	syncing sync.Mutex // held over a Sync; before mu
	durable atomic.Int64
	fault   func(op Op, path string) error // Options.Fault; set before the segment is in its set
	noSync  bool                           // Options.NoSync; likewise

	mu       sync.Mutex // guards what follows
	written  sync.Cond  // signalled when a write ends
	writing  []int64    // offsets of the records being written
	voids    []Record   // space in which nothing is, as its write failed or for alignment, and that has no header yet
	sealed   bool       // no more appends
	reserved int64      // disk space was allocated up to here
	flushed  int64      // writeback was started up to here
	failed   error      // a failed sync, which no later one can make good
}

func createSegment(path string, id uint32, capacity int64) (*Segment, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	h := encodeFileHeader(id)
	if _, err := f.WriteAt(h[:], 0); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	s, err := mapSegment(f, path, id, capacity)
	if err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	s.end.Store(HeaderSize)
	return s, nil
}

// openSegment opens an existing file, of which the first end bytes hold data.
// It can be appended to if capacity is larger than that.
func openSegment(path string, id uint32, end, capacity int64, readOnly bool) (*Segment, error) {
	how := os.O_RDWR
	if readOnly {
		how = os.O_RDONLY
	}
	f, err := os.OpenFile(path, how, 0)
	if err != nil {
		return nil, err
	}
	s, err := func() (*Segment, error) {
		var h [HeaderSize]byte
		if _, err := f.ReadAt(h[:], 0); err != nil {
			return nil, err
		}
		if err := checkFileHeader(h[:], id); err != nil {
			return nil, err
		}
		if capacity <= end && !readOnly {
			// A process that was killed may have left space allocated beyond
			// the file's end.
			var st unix.Stat_t
			if err := unix.Fstat(int(f.Fd()), &st); err != nil {
				return nil, err
			}
			if st.Blocks*512 > st.Size+64<<10 {
				if err := f.Truncate(st.Size); err != nil {
					return nil, err
				}
			}
		}
		return mapSegment(f, path, id, max(capacity, end))
	}()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open segment %s: %w", path, err), f.Close())
	}
	s.earlier = !readOnly && s.locked()
	s.end.Store(end)
	s.sealed = capacity <= end
	s.reserved, s.flushed = end, end
	return s, nil
}

func mapSegment(f *os.File, path string, id uint32, capacity int64) (*Segment, error) {
	if capacity > math.MaxInt-int64(os.Getpagesize()) {
		return nil, fmt.Errorf("%w: a segment of %d bytes", schema.ErrLimit, capacity)
	}
	// The pages beyond the file's end become readable as it grows.
	mem, err := unix.Mmap(int(f.Fd()), 0, int(capacity), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", capacity, err)
	}
	// Blobs have no place in a core dump. Failing is harmless.
	_ = unix.Madvise(mem, unix.MADV_DONTDUMP)
	s := &Segment{id: id, path: path, file: f, mem: mem, capacity: capacity}
	s.written.L = &s.mu
	s.refs.Store(1)
	return s, nil
}

// ID is the segment's number in its set.
func (s *Segment) ID() uint32 { return s.id }

// Size is where the data ends. It grows while the segment is appended to.
func (s *Segment) Size() int64 { return s.end.Load() }

// Durable is the length of the prefix that is known to be on stable storage.
func (s *Segment) Durable() int64 { return s.durable.Load() }

// Scan reads the segment's records: see the function Scan. The caller must
// know that the segment is not retired meanwhile.
func (s *Segment) Scan(opts ScanOptions) func(yield func(Record, error) bool) {
	return Scan(s.file, s.id, s.end.Load(), opts)
}

// pin adds a reference, unless the last one is gone.
func (s *Segment) pin() bool {
	for {
		n := s.refs.Load()
		if n <= 0 {
			return false
		}
		if s.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Unpin implements schema.Owner.
func (s *Segment) Unpin() {
	switch n := s.refs.Add(-1); {
	case n == 0 && s.model != nil:
	case n == 0:
		// Nothing can be done about a failure, and nothing depends on it.
		_ = unix.Munmap(s.mem)
		s.giveSpaceBack()
		_ = s.file.Close()
		if s.direct != nil {
			_ = s.direct.Close()
		}
	case n < 0:
		panic("segment: released more often than pinned")
	}
}

// Extent implements schema.Locator. The blobs of a segment are pieces of its mapping, which covers the file from its
// beginning.
func (s *Segment) Extent(data []byte) (schema.Extent, bool) {
	if s.model != nil {
		return schema.Extent{}, false
	}
	at, ok := offsetIn(s.mem, data)
	return schema.Extent{File: s.file, Offset: at, Length: int64(len(data)), Limit: s.limit()}, ok
}

// read returns the bytes at off, pinned. Its caller holds a pin, which passes
// to the blob or is given back.
func (s *Segment) read(off, n int64) (schema.Blob, error) {
	if off < HeaderSize || n < 0 || n > s.end.Load()-off {
		s.Unpin()
		return schema.Blob{}, fmt.Errorf("%w: segment %d has no %d bytes at offset %d", schema.ErrDataLoss, s.id, n,
			off)
	}
	if n == 0 {
		s.Unpin()
		return schema.Blob{}, nil
	}
	if err := s.failing(OpRead); err != nil {
		s.Unpin()
		return schema.Blob{}, fmt.Errorf("read %d bytes of segment %d at offset %d: %w", n, s.id, off, err)
	}
	if s.model != nil {
		return s.model.read(s, n), nil
	}
	data := s.mem[off : off+n : off+n]
	if s.present.holds(data) || schema.Populate(data) == nil {
		return schema.NewBlob(data, s), nil
	}
	// Either the kernel cannot populate a mapping, or the pages cannot be
	// read; then pread tells why, where touching them would kill the process.
	defer s.Unpin()
	data = make([]byte, n)
	if _, err := s.file.ReadAt(data, off); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, unix.EIO) {
			err = fmt.Errorf("%w: %w", schema.ErrDataLoss, err)
		}
		return schema.Blob{}, fmt.Errorf("read %d bytes of %s at offset %d: %w", n, s.path, off, err)
	}
	return schema.NewBlob(data, nil), nil
}

// failing returns the error with which an operation is to fail.
func (s *Segment) failing(op Op) error {
	if s.fault == nil {
		return nil
	}
	return s.fault(op, s.path)
}
