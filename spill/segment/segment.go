package segment

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
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

// writeback is how much is written before the kernel is told to start storing
// it, so that little is left for the sync at the end of an import.
const writeback = 8 << 20

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
	if resident(data) || populate(data) == nil {
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

// reserve takes space for a payload of n bytes and returns the offset of its
// record, or false if the segment is sealed or has no room. The caller, who
// holds a pin, must call write with it.
func (s *Segment) reserve(n int64, alloc allocator) (at int64, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.end.Load()
	at, next := s.span(end, n)
	if s.sealed || next > s.capacity {
		return 0, false, nil
	}
	if next > s.reserved {
		s.reserved, err = alloc.allocate(s.file, s.reserved, next, s.capacity)
		if err != nil {
			return 0, false, err
		}
		if s.direct != nil {
			// Where the file need not grow for it, a direct write does not wait for the one before. A failure costs no
			// more than that.
			_ = s.file.Truncate(min(s.reserved, s.capacity))
		}
	}
	if at > end && !s.noSync { // the rest of a block that others lie in
		s.voids = append(s.voids, Record{Offset: end + HeaderSize, Length: at - end - HeaderSize, Void: true})
	}
	s.writing = append(s.writing, at)
	s.end.Store(next)
	return at, true, nil
}

var padding [Align]byte

// write fills in reserved space: that of one record, or of several that are written directly and follow one another.
func (s *Segment) write(run []Write) {
	err := s.failing(OpWrite)
	switch {
	case err != nil:
	case s.model != nil:
		s.model.write(run)
	case s.isDirect(run[0].n):
		err = s.writeDirect(run)
	default:
		err = s.writeBuffered(&run[0])
	}
	for i := range run {
		w := &run[i]
		s.wrote(w.at, w.n, err)
		if err != nil {
			w.Err = fmt.Errorf("write %d bytes to segment %d: %w", w.n, s.id, err)
		}
	}
}

func (s *Segment) writeBuffered(w *Write) error {
	h := encodeRecordHeader(s.id, w.record())
	iovs := [][]byte{h[:]}
	if w.n > 0 {
		iovs = append(iovs, w.Payload)
	}
	if pad := Footprint(w.n) - HeaderSize - w.n; pad > 0 {
		iovs = append(iovs, padding[:pad])
	}
	return pwritev(int(s.file.Fd()), iovs, w.at)
}

// wrote ends the write of a record with a payload of n bytes.
func (s *Segment) wrote(at, n int64, err error) {
	s.mu.Lock()
	if err != nil {
		// What follows must stay reachable for Scan: a void record bridges the gap.
		_, next := s.span(at, n)
		s.voids = append(s.voids, Record{Offset: at + HeaderSize, Length: next - at - HeaderSize, Void: true})
	}
	i := slices.Index(s.writing, at)
	s.writing = slices.Delete(s.writing, i, i+1)
	from, to := s.flushed, s.lowest()
	if to-from >= writeback && !s.noSync {
		s.flushed = to
	} else {
		to = from
	}
	s.written.Broadcast()
	s.mu.Unlock()

	if to > from {
		// A hint: what it does not do, Sync will.
		_ = unix.SyncFileRange(int(s.file.Fd()), from, to-from, unix.SYNC_FILE_RANGE_WRITE)
	}
}

// lowest is the offset below which nothing is being written. s.mu is held.
func (s *Segment) lowest() int64 {
	low := s.end.Load()
	for _, at := range s.writing {
		low = min(low, at)
	}
	return low
}

// seal ends appending. Writes under way go on.
func (s *Segment) seal() {
	s.mu.Lock()
	s.sealed = true
	s.mu.Unlock()
}

// failing returns the error with which an operation is to fail.
func (s *Segment) failing(op Op) error {
	if s.fault == nil {
		return nil
	}
	return s.fault(op, s.path)
}

// Room is how many bytes of payload can be appended in space that is allocated
// already; 0 if the segment is sealed.
func (s *Segment) Room() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealed {
		return 0
	}
	return max(0, min(s.reserved, s.capacity)-s.end.Load()-HeaderSize)
}

// Allocated is the space that the file takes, in whole blocks, if nothing was
// punched.
func (s *Segment) Allocated() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Blocks(max(s.reserved, s.end.Load()))
}

// Trim gives the space back that is allocated beyond the end of a sealed
// segment, and returns how many bytes that are. Of one that is not sealed it
// gives back none.
func (s *Segment) Trim() (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.end.Load()
	n := s.reserved - Blocks(end)
	if !s.sealed || n <= 0 {
		return 0, nil
	}
	if err := s.failing(OpTrim); err != nil {
		return 0, fmt.Errorf("trim segment %d: %w", s.id, err)
	}
	// The end is not below anything that was written or is being written.
	if s.model == nil {
		if err := s.file.Truncate(end); err != nil {
			return 0, fmt.Errorf("trim segment %d: %w", s.id, err)
		}
	}
	s.reserved = Blocks(end)
	return n, nil
}

// Cut gives back what is allocated beyond the end of the data of a segment that
// is not appended to, as a process that was killed may leave it.
func (s *Segment) Cut() error {
	if err := s.file.Truncate(s.end.Load()); err != nil {
		return fmt.Errorf("trim segment %d: %w", s.id, err)
	}
	return nil
}

// Punch gives the blocks from one offset to another, multiples of Block, back
// to the file system. They read as zeros from then on: the caller knows that no
// blob in them is pinned, or will be asked for. A file system that cannot do it
// is errors.ErrUnsupported.
func (s *Segment) Punch(from, to int64) error {
	if err := s.failing(OpPunch); err != nil {
		return fmt.Errorf("punch segment %d: %w", s.id, err)
	}
	for s.model == nil {
		err := unix.Fallocate(int(s.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("punch segment %d: %w", s.id, err)
		default:
			return nil
		}
	}
	return nil
}

// DataRuns yields the stretches of the file that are not holes, in order. Space that is
// allocated and was never written counts as a hole.
func (s *Segment) DataRuns(yield func(from, to int64) bool) error {
	fd := int(s.file.Fd())
	for at := int64(0); ; {
		from, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // no more data
		} else if err != nil {
			return fmt.Errorf("find the data of segment %d: %w", s.id, err)
		}
		if at, err = unix.Seek(fd, from, unix.SEEK_HOLE); err != nil {
			return fmt.Errorf("find the holes of segment %d: %w", s.id, err)
		}
		if !yield(from, at) {
			return nil
		}
	}
}

// Sync brings all that was appended before the call to stable storage, waiting
// for the writes under way.
func (s *Segment) Sync() error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	s.mu.Lock()
	end := s.end.Load()
	for s.lowest() < end {
		s.written.Wait()
	}
	err, voids := s.failed, slices.Clone(s.voids)
	// Not if it grew, and was sealed, while the lock was given up to wait.
	trim := s.sealed && s.reserved > end && s.end.Load() == end
	s.mu.Unlock()
	if err != nil || end <= s.durable.Load() && !trim {
		return err
	}
	for _, v := range voids {
		h := encodeRecordHeader(s.id, v)
		if _, err := s.file.WriteAt(h[:], v.Offset-HeaderSize); err != nil {
			return fmt.Errorf("sync segment %d: mark a failed write: %w", s.id, err)
		}
	}
	if trim {
		// A sealed segment grows no more: this gives back what was allocated
		// beyond its end and takes away nothing that is mapped.
		if err := s.file.Truncate(end); err != nil {
			return fmt.Errorf("sync segment %d: %w", s.id, err)
		}
	}
	if err = s.failing(OpSync); err == nil {
		err = unix.Fdatasync(int(s.file.Fd()))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		// The kernel forgets pages it failed to write: a second sync would
		// report success for data that is lost.
		s.failed = fmt.Errorf("sync segment %d: %w", s.id, err)
		return s.failed
	}
	if trim {
		s.reserved = end
	}
	s.voids = slices.DeleteFunc(s.voids, func(r Record) bool { return slices.Contains(voids, r) })
	s.durable.Store(max(end, s.durable.Load()))
	return nil
}

func pwritev(fd int, iovs [][]byte, off int64) error {
	for len(iovs) > 0 {
		n, err := unix.Pwritev(fd, iovs, off)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		iovs, off = advance(iovs, n), off+int64(n)
	}
	return nil
}

// advance returns what is left of iovs, whose elements it changes, after the first n bytes.
func advance(iovs [][]byte, n int) [][]byte {
	for len(iovs) > 0 && n >= len(iovs[0]) {
		n -= len(iovs[0])
		iovs = iovs[1:]
	}
	if len(iovs) > 0 {
		iovs[0] = iovs[0][n:]
	}
	return iovs
}
