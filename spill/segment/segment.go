// Package segment stores blobs in append-only files that are read through memory mappings.
//
// A [Set] is one directory of segments. Any number of goroutines may append: each append reserves its space under a
// lock and writes outside the lock, through the page cache or, for a cache's large blobs, past it ([Options.Direct]).
// A blob is read as a pinned slice of the mapping, without a copy, an allocation or a lock. The pin is a reference to
// the [Segment], which is unmapped once the set has retired it and the last pin is gone. A file is never shortened
// below what it holds, because access to a mapped page that has vanished kills the process. It is punched only where
// the caller knows that there are no readers ([Segment.Punch]).
//
// The package knows where blobs are, not which ones exist: the caller has the index. Every record has a header from
// which [Scan] rebuilds the index.
//
// Reads without a copy need Linux 5.14 or later; earlier kernels use pread.
package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// Sizes of the on-disk format. A file is a 64-byte file header followed by records: a 64-byte header, the payload,
// and zeros up to the next multiple of Align. All integers are little-endian.
const (
	// Align is the alignment of every payload's offset: that of Arrow buffers, so that manifest chunks are read in
	// place.
	Align = 64
	// HeaderSize is the size of the file header, and of each record's header.
	HeaderSize = 64

	version = 1

	flagVoid = 1 // the record's space was reserved and its write failed
)

var (
	// The first bytes of the headers. CR LF in the file's reveals a conversion of line ends.
	fileMagic   = [8]byte{'B', 'O', 'W', 'S', 'E', 'G', '\r', '\n'}
	recordMagic = [4]byte{'B', 'R', 'E', 'C'}
	castagnoli  = crc32.MakeTable(crc32.Castagnoli)
)

// Footprint is the space of a payload of n bytes in a segment, with header and padding.
func Footprint(n int64) int64 { return HeaderSize + (n+Align-1)/Align*Align }

// Record is the content of a record's header.
type Record struct {
	Key    schema.Key
	Offset int64      // of the payload in the file
	Length int64      // of the payload, in bytes
	Sum    schema.Sum // of the payload
	Void   bool       // no blob: the write of this record failed
}

// encodeFileHeader returns a file header: magic [8], version u32, number of the segment
// u32, zeros, and a CRC-32C of the 60 bytes before it.
func encodeFileHeader(id uint32) [HeaderSize]byte {
	var h [HeaderSize]byte
	copy(h[:8], fileMagic[:])
	binary.LittleEndian.PutUint32(h[8:], version)
	binary.LittleEndian.PutUint32(h[12:], id)
	binary.LittleEndian.PutUint32(h[60:], crc32.Checksum(h[:60], castagnoli))
	return h
}

// checkFileHeader fails with a schema.ErrDataLoss for a damaged header, and with a
// schema.ErrInvalid for another version.
func checkFileHeader(h []byte, id uint32) error {
	switch {
	case [8]byte(h[:8]) != fileMagic:
		return fmt.Errorf("%w: not a segment file", schema.ErrDataLoss)
	case binary.LittleEndian.Uint32(h[60:]) != crc32.Checksum(h[:60], castagnoli):
		return fmt.Errorf("%w: the file header's checksum is wrong", schema.ErrDataLoss)
	case binary.LittleEndian.Uint32(h[8:]) != version:
		return fmt.Errorf("%w: segment format %d, this program reads %d", schema.ErrInvalid,
			binary.LittleEndian.Uint32(h[8:]), version)
	case binary.LittleEndian.Uint32(h[12:]) != id:
		return fmt.Errorf("%w: the file is segment %d, not %d", schema.ErrDataLoss,
			binary.LittleEndian.Uint32(h[12:]), id)
	}
	return nil
}

// encodeRecordHeader returns a record header: magic [4], version u16, flags u16, key
// [32], length u64, checksum u64, number of the segment u32, and a CRC-32C of the 60
// bytes before it. The number is there so that a record in the wrong file is detected.
func encodeRecordHeader(id uint32, r Record) [HeaderSize]byte {
	var h [HeaderSize]byte
	copy(h[:4], recordMagic[:])
	binary.LittleEndian.PutUint16(h[4:], version)
	if r.Void {
		binary.LittleEndian.PutUint16(h[6:], flagVoid)
	}
	copy(h[8:40], r.Key[:])
	binary.LittleEndian.PutUint64(h[40:], uint64(r.Length))
	binary.LittleEndian.PutUint64(h[48:], uint64(r.Sum))
	binary.LittleEndian.PutUint32(h[56:], id)
	binary.LittleEndian.PutUint32(h[60:], crc32.Checksum(h[:60], castagnoli))
	return h
}

// decodeRecordHeader reads the header at offset at of segment id, a file of size bytes. A reason other than "" says
// what is wrong with it.
func decodeRecordHeader(h []byte, id uint32, at, size int64) (r Record, reason string) {
	switch {
	case [4]byte(h[:4]) != recordMagic:
		return r, "no record header"
	case binary.LittleEndian.Uint32(h[60:]) != crc32.Checksum(h[:60], castagnoli):
		return r, "the record header's checksum is wrong"
	case binary.LittleEndian.Uint16(h[4:]) != version:
		return r, "unknown record version"
	case binary.LittleEndian.Uint32(h[56:]) != id:
		return r, "the record belongs to another segment"
	}
	length := binary.LittleEndian.Uint64(h[40:])
	if length > uint64(size-at-HeaderSize) {
		return r, "the record reaches beyond the end of the file"
	}
	r = Record{
		Offset: at + HeaderSize,
		Length: int64(length),
		Sum:    schema.Sum(binary.LittleEndian.Uint64(h[48:])),
		Void:   binary.LittleEndian.Uint16(h[6:])&flagVoid != 0,
	}
	copy(r.Key[:], h[8:40])
	return r, ""
}

// Segment is one file of blobs with its mapping. It is the schema.Owner of the blobs read from it.
//
// It is reference counted: one reference of the Set that opened it, one per write in flight, and one per blob handed
// out. The last reference to go unmaps and closes it; a count of zero is final.
type Segment struct {
	id   uint32
	path string
	file *os.File
	// direct is a second descriptor for writes past the page cache, or nil. io is the set's.
	direct *os.File
	io     *directIO
	// present is the set's, once the segment is in it.
	present *presence
	// mem is the mapping. It covers capacity bytes, to which the file may grow. Only the part below end is backed by
	// data.
	mem      []byte
	capacity int64
	sharing
	model *Model // instead of file and mem, if not nil
	refs  atomic.Int64
	end   atomic.Int64 // end of the data: the limit of every read

	syncing sync.Mutex // held during a Sync; locked before mu
	durable atomic.Int64
	fault   func(op Op, path string) error // Options.Fault; set before the segment is in its set
	noSync  bool                           // Options.NoSync; likewise

	mu       sync.Mutex // guards what follows
	written  sync.Cond  // signalled when a write ends
	writing  []int64    // offsets of the records being written
	voids    []Record   // empty space, left by a failed write or for alignment, without a header yet
	sealed   bool       // no more appends
	reserved int64      // disk space is allocated up to here
	flushed  int64      // writeback was started up to here
	failed   error      // the error of a failed sync, which no later sync can repair
}

// createSegment creates a file with a header, and maps capacity bytes of it. On failure
// no file remains.
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

// openSegment opens an existing file whose first end bytes hold data. It can be appended to if capacity is larger.
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
			// A process that was killed may have left space allocated beyond the file's end.
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

// mapSegment maps capacity bytes of a file, which may be shorter.
func mapSegment(f *os.File, path string, id uint32, capacity int64) (*Segment, error) {
	if capacity > math.MaxInt-int64(os.Getpagesize()) {
		return nil, fmt.Errorf("%w: a segment of %d bytes", schema.ErrLimit, capacity)
	}
	// Pages beyond the file's end become readable as it grows.
	mem, err := unix.Mmap(int(f.Fd()), 0, int(capacity), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", capacity, err)
	}
	// Keep blobs out of core dumps. An error is harmless.
	_ = unix.Madvise(mem, unix.MADV_DONTDUMP)
	s := &Segment{id: id, path: path, file: f, mem: mem, capacity: capacity}
	s.written.L = &s.mu
	s.refs.Store(1)
	return s, nil
}

// ID is the segment's number in its set.
func (s *Segment) ID() uint32 { return s.id }

// Size is the end of the data. It grows while the segment is appended to.
func (s *Segment) Size() int64 { return s.end.Load() }

// Durable is the length of the prefix that is known to be on stable storage.
func (s *Segment) Durable() int64 { return s.durable.Load() }

// Scan reads the segment's records: see the function Scan. The caller must prevent that the segment is retired in the
// meantime.
func (s *Segment) Scan(opts ScanOptions) func(yield func(Record, error) bool) {
	return Scan(s.file, s.id, s.end.Load(), opts)
}

// pin adds a reference; false if the last one is gone.
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
		// There is no way to handle an error, and nothing depends on it.
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

// Extent implements schema.Locator. Blobs are slices of the mapping, which covers the file from its beginning.
func (s *Segment) Extent(data []byte) (schema.Extent, bool) {
	if s.model != nil {
		return schema.Extent{}, false
	}
	at, ok := offsetIn(s.mem, data)
	return schema.Extent{File: s.file, Offset: at, Length: int64(len(data)), Limit: s.limit()}, ok
}

// read returns the bytes at off, pinned. The caller holds a pin, which passes to the blob or is released.
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
	// Either the kernel cannot populate a mapping, or the pages cannot be read. In the second case pread returns the
	// error, where touching the pages would kill the process.
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

// failing returns the error that a test injects for an operation.
func (s *Segment) failing(op Op) error {
	if s.fault == nil {
		return nil
	}
	return s.fault(op, s.path)
}

// writeback is how many bytes are written before the kernel starts to store them, so that the sync at the end of an
// import has little left to do.
const writeback = 8 << 20

// reserve takes space for a payload of n bytes and returns the offset of its record; false if the segment is sealed
// or has no room. The caller, who holds a pin, must call write with it.
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
			// If the file need not grow, a direct write does not wait for the one before. An error only costs that
			// wait.
			_ = s.file.Truncate(min(s.reserved, s.capacity))
		}
	}
	if at > end && !s.noSync { // the rest of a block that has other records
		s.voids = append(s.voids, Record{Offset: end + HeaderSize, Length: at - end - HeaderSize, Void: true})
	}
	s.writing = append(s.writing, at)
	s.end.Store(next)
	return at, true, nil
}

// padding are the zeros after a payload.
var padding [Align]byte

// write fills reserved space: that of one record, or of several consecutive ones that are written directly.
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

// writeBuffered writes a record through the page cache.
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
		// Scan must still reach the records after it: a void record bridges the gap.
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
		// A hint: Sync does what it leaves out.
		_ = unix.SyncFileRange(int(s.file.Fd()), from, to-from, unix.SYNC_FILE_RANGE_WRITE)
	}
}

// lowest is the offset below which no write is in flight. s.mu is held.
func (s *Segment) lowest() int64 {
	low := s.end.Load()
	for _, at := range s.writing {
		low = min(low, at)
	}
	return low
}

// seal ends appending. Writes in flight continue.
func (s *Segment) seal() {
	s.mu.Lock()
	s.sealed = true
	s.mu.Unlock()
}

// Sync brings all that was appended before the call to stable storage. It waits for writes in flight.
func (s *Segment) Sync() error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	s.mu.Lock()
	end := s.end.Load()
	for s.lowest() < end {
		s.written.Wait()
	}
	err, voids := s.failed, slices.Clone(s.voids)
	// Not if the segment grew and was sealed while the lock was released for the wait.
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
		// A sealed segment does not grow. This releases what was allocated beyond its end, and nothing that is
		// mapped.
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
		// The kernel drops pages that it failed to write: a second sync would report success for lost data.
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

// pwritev writes all of iovs at an offset. It changes the elements of iovs.
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

// advance returns what is left of iovs after the first n bytes. It changes the elements of iovs.
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

// Records of at least directMin bytes may be written past the page cache (O_DIRECT): from the frames of the blobs, or
// from an aligned buffer, in whole blocks without other records. Data that is read much later then takes no memory
// from other uses, and the kernel neither fills pages nor writes them back. The price is the rest of the record's
// last block, which is a void record.
const (
	directMin  = 32 << 10
	directSize = 4 << 20 // size of a buffer; consecutive records are written together
	// How many unused buffers are kept. Memory that was used before costs a fraction of fresh memory.
	directKept = 4
)

// directIO is shared by the segments of a set for writes past the page cache.
type directIO struct {
	buffers directBuffers
	writers asyncWriters
}

// directBuffers holds buffers that begin at a multiple of Block.
type directBuffers chan []byte

// newDirectBuffers returns an empty pool; take allocates buffers.
func newDirectBuffers() directBuffers { return make(directBuffers, directKept) }

// take returns a buffer of directSize bytes. It is not zeroed.
func (d directBuffers) take() []byte {
	select {
	case b := <-d:
		return b
	default:
	}
	b := make([]byte, directSize+Block)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) % Block)
	return b[skip : skip+directSize]
}

// give keeps a buffer for the next take, or drops it if there are directKept already.
func (d directBuffers) give(b []byte) {
	select {
	case d <- b:
	default:
	}
}

// openDirect opens a segment's file again for writes past the page cache; nil if the file system does not support
// them.
func openDirect(path string) *os.File {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil
	}
	return f
}

// isDirect reports whether a record with a payload of n bytes is written past the page cache.
func (s *Segment) isDirect(n int64) bool {
	return (s.direct != nil || s.model != nil) && n >= directMin
}

// span is where a record with a payload of n bytes begins and ends if it is appended to data that ends at end.
func (s *Segment) span(end, n int64) (at, next int64) {
	if s.isDirect(n) {
		at = Blocks(end)
		return at, at + Blocks(Footprint(n))
	}
	return end, end + Footprint(n)
}

// writeDirect writes consecutive records, and the void rests of their last blocks.
func (s *Segment) writeDirect(run []Write) error {
	if !slices.ContainsFunc(run, func(w Write) bool { return !w.framed() }) {
		return s.writeFrames(run)
	}
	return s.writeCopies(run)
}

// A record in its blocks has the layout of a frame.
var (
	_ [HeaderSize]byte = [schema.FrameMargin]byte{}
	_ [Block]byte      = [schema.FrameBlock]byte{}
)

// framed reports whether the payload is in a frame.
func (w *Write) framed() bool {
	return int64(len(w.Frame)) == schema.FrameSize(w.n) && &w.Frame[HeaderSize] == &w.Payload[0] &&
		uintptr(unsafe.Pointer(&w.Frame[0]))%Block == 0
}

// writeFrames writes records directly from their frames.
func (s *Segment) writeFrames(run []Write) error {
	iovs := make([][]byte, len(run))
	for i := range run {
		w := &run[i]
		h := encodeRecordHeader(s.id, w.record())
		copy(w.Frame, h[:])
		clear(w.Frame[HeaderSize+w.n:])
		if used := Footprint(w.n); used < int64(len(w.Frame)) {
			void := s.voidHeader(int64(len(w.Frame)) - used)
			copy(w.Frame[used:], void[:])
		}
		iovs[i] = w.Frame
	}
	return s.pwriteDirect(iovs, run[0].at)
}

// voidHeader is the header of a void record of n bytes in all.
func (s *Segment) voidHeader(n int64) [HeaderSize]byte {
	return encodeRecordHeader(s.id, Record{Length: n - HeaderSize, Void: true})
}

// writeCopies writes records through a buffer: as many as fit in it, or a single one that does not, in pieces.
func (s *Segment) writeCopies(run []Write) error {
	buf := s.io.buffers.take()
	defer s.io.buffers.give(buf)
	at, n := run[0].at, 0
	for i := range run {
		w := &run[i]
		length := int64(len(w.Payload))
		h := encodeRecordHeader(s.id, w.record())
		pad := Footprint(length) - HeaderSize - length
		rest := Blocks(Footprint(length)) - Footprint(length)
		var void []byte
		if rest > 0 {
			v := s.voidHeader(rest)
			void = v[:]
		}
		for _, part := range [][]byte{h[:], w.Payload, padding[:pad], void} {
			for len(part) > 0 {
				if n == len(buf) {
					if err := s.pwriteDirect([][]byte{buf}, at); err != nil {
						return err
					}
					at, n = at+int64(n), 0
				}
				m := copy(buf[n:], part)
				n, part = n+m, part[m:]
			}
		}
		next := int(Blocks(int64(n)))
		clear(buf[n:next])
		n = next
	}
	return s.pwriteDirect([][]byte{buf[:n]}, at)
}

// pwriteDirect writes whole blocks. If the file system refuses a write past the page cache, the blocks are written
// through it. iovs is consumed.
func (s *Segment) pwriteDirect(iovs [][]byte, at int64) error {
	write := unix.Pwritev
	if w := s.io.writers.take(); w != nil {
		defer s.io.writers.give(w)
		write = w.pwritev
	}
	for len(iovs) > 0 {
		n, err := write(int(s.direct.Fd()), iovs, at)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EINVAL), err == nil && n%Block != 0:
			return pwritev(int(s.file.Fd()), iovs, at)
		case err != nil:
			return err
		}
		iovs, at = advance(iovs, n), at+int64(n)
	}
	return nil
}

// A write past the page cache waits for the disk. A goroutine that waits in a system call occupies one of Go's
// processors until the runtime takes the processor away; on a server with few processors that costs more than
// everything else about the write. So the write is submitted to the kernel (io_submit), which signals its end by an
// eventfd, for which the runtime's poller waits.

// asyncWriter has one write in flight at a time.
type asyncWriter struct {
	context uintptr  // aio_context_t
	done    *os.File // an eventfd
	doneFD  uint32   // descriptor of done
	request iocb
	iovs    []unix.Iovec
	pins    runtime.Pinner
}

// iocb is the argument of io_submit, and ioEvent the result of io_getevents, as in linux/aio_abi.h.
type iocb struct {
	_       uint64 // data
	_       uint32 // key
	_       int32  // rw_flags
	opcode  uint16
	_       int16 // reqprio
	fd      uint32
	buf     uint64
	count   uint64
	offset  int64
	_       uint64
	flags   uint32
	eventFD uint32
}

// ioEvent is struct io_event of linux/aio_abi.h.
type ioEvent struct {
	_, _   uint64 // data, obj
	result int64
	_      int64 // res2
}

const (
	// Values of iocb.opcode and iocb.flags.
	opPwritev   = 8 // IOCB_CMD_PWRITEV
	flagEventFD = 1 // IOCB_FLAG_RESFD
)

// newAsyncWriter creates an AIO context for one request, and its eventfd.
func newAsyncWriter() (*asyncWriter, error) {
	w := &asyncWriter{}
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&w.context)), 0); errno != 0 {
		return nil, os.NewSyscallError("io_setup", errno)
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		w.close()
		return nil, os.NewSyscallError("eventfd", err)
	}
	w.done, w.doneFD = os.NewFile(uintptr(fd), "eventfd"), uint32(fd)
	return w, nil
}

// close releases the context and the eventfd.
func (w *asyncWriter) close() {
	// Neither can fail, because nothing is in flight.
	_, _, _ = unix.Syscall(unix.SYS_IO_DESTROY, w.context, 0, 0)
	if w.done != nil {
		_ = w.done.Close()
	}
}

// pwritev writes as pwritev(2) does.
func (w *asyncWriter) pwritev(fd int, iovs [][]byte, at int64) (int, error) {
	defer w.pins.Unpin()
	w.iovs = w.iovs[:0]
	for _, b := range iovs {
		w.pins.Pin(&b[0])
		w.iovs = append(w.iovs, unix.Iovec{Base: &b[0], Len: uint64(len(b))})
	}
	w.pins.Pin(&w.iovs[0])
	w.pins.Pin(w)
	w.request = iocb{
		opcode:  opPwritev,
		fd:      uint32(fd),
		buf:     uint64(uintptr(unsafe.Pointer(&w.iovs[0]))),
		count:   uint64(len(w.iovs)),
		offset:  at,
		flags:   flagEventFD,
		eventFD: w.doneFD,
	}
	request := &w.request
	if _, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, w.context, 1, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return 0, errno
	}
	// If the poller fails, io_getevents waits: the kernel still uses the memory.
	var count [8]byte
	_, _ = w.done.Read(count[:])
	var event ioEvent
	for {
		n, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, w.context, 1, 1, uintptr(unsafe.Pointer(&event)), 0, 0)
		switch {
		case n == 1 && event.result < 0:
			return 0, unix.Errno(-event.result)
		case n == 1:
			return int(event.result), nil
		case errno != unix.EINTR:
			// It would be unknown when the kernel has finished with the memory
			panic("segment: io_getevents: " + errno.Error())
		}
	}
}

// asyncWriters are the idle writers of a set.
type asyncWriters struct {
	mu   sync.Mutex
	idle []*asyncWriter
	none bool // the system has none, or the set is closed
}

// take returns a writer for the caller's sole use, or nil if there is none.
func (a *asyncWriters) take() *asyncWriter {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.idle); n > 0 {
		w := a.idle[n-1]
		a.idle = a.idle[:n-1]
		return w
	}
	if a.none {
		return nil
	}
	w, err := newAsyncWriter()
	if err != nil { // a sandbox forbids it, or the system's limit is reached
		a.none = true
		return nil
	}
	return w
}

// give keeps a writer for the next take, or closes it.
func (a *asyncWriters) give(w *asyncWriter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.none || len(a.idle) == directKept {
		w.close()
		return
	}
	a.idle = append(a.idle, w)
}

// close closes the idle writers; take returns nil from then on.
func (a *asyncWriters) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.none = true
	for _, w := range a.idle {
		w.close()
	}
	a.idle = nil
}

// sharing tracks other processes that read a segment's file. A caller that has an extent may pass the file to other
// processes, as a descriptor with a shared lock (flock). The lock lasts as long as one of them has the file or a
// mapping of it.
type sharing struct {
	elsewhere atomic.Bool // an earlier process has passed it on, and another one still has it
	earlier   bool        // the same, when it was opened
}

// limit is the Limit of extents.
func (s *Segment) limit() int64 {
	if s.elsewhere.Load() {
		return 0 // otherwise it would never be known when the other processes have closed it
	}
	return s.capacity
}

// giveSpaceBack releases the disk space of a file without a name. A process that was passed a descriptor may keep the
// file for any time, with a lock or without, and its space would be counted nowhere. The last blob read from the
// segment was released, so no client of this process reads the file any more, if clients keep to the rules. A client
// of an earlier process may, as long as it has the lock.
func (s *Segment) giveSpaceBack() {
	var st unix.Stat_t
	if err := unix.Fstat(int(s.file.Fd()), &st); err != nil || st.Nlink > 0 || s.earlier && s.locked() {
		return
	}
	_ = s.file.Truncate(0)
}

// Elsewhere reports whether other processes have the file that an earlier process has passed to them: then its
// content must stay as it is. Call it before the first read of the segment, and again until it is false. Until then
// extents cannot be passed to other processes.
func (s *Segment) Elsewhere() bool {
	if s.model != nil {
		return false
	}
	s.elsewhere.Store(s.locked())
	return s.elsewhere.Load()
}

// locked reports whether another process has a file, or a mapping, that was passed to it.
func (s *Segment) locked() bool {
	fd := int(s.file.Fd())
	err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_UN)
	}
	return errors.Is(err, unix.EWOULDBLOCK)
}

// offsetIn returns the offset of b in mem; false if b is not a slice of mem, or empty.
func offsetIn(mem, b []byte) (int64, bool) {
	first, at := uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	if len(b) == 0 || at < first || at-first > uintptr(len(mem)) || uintptr(len(b)) > uintptr(len(mem))-(at-first) {
		return 0, false
	}
	return int64(at - first), true
}

const (
	// presentRun is after how many consecutive reads with all pages in memory only a sample is checked.
	presentRun = 4096
	// presentEach is the period of that sample.
	presentEach = 8
)

// presence predicts whether pages are in memory. Asking the kernel costs a system call per blob, a tenth of serving a
// blob from memory. If the last presentRun blobs were all in memory, it checks one blob in presentEach until one is
// not, because the kernel reclaims many pages at a time. A wrong prediction costs a page fault, which blocks one of
// Go's processors while the disk reads; the bytes are right in any case. It is safe for concurrent use.
type presence struct{ run atomic.Int64 }

// holds reports whether the pages of b are likely to be in memory.
func (p *presence) holds(b []byte) bool {
	if n := p.run.Add(1); n > presentRun && n%presentEach != 0 {
		return true
	}
	if schema.Resident(b) {
		return true
	}
	p.run.Store(0)
	return false
}

// DamageError is the error that Scan yields for a range of a segment without a good record. It is a
// schema.ErrDataLoss.
type DamageError struct {
	Segment uint32
	Offset  int64 // where it begins
	Length  int64 // up to the next record header, or to the end of the file
	Reason  string
}

// Error implements error.
func (d *DamageError) Error() string {
	return fmt.Sprintf("segment %d, %d bytes at offset %d: %s", d.Segment, d.Length, d.Offset, d.Reason)
}

// Unwrap makes every DamageError a schema.ErrDataLoss.
func (d *DamageError) Unwrap() error { return schema.ErrDataLoss }

// ScanOptions configures Scan.
type ScanOptions struct {
	// From is the offset of a record header to start at; 0 for the first.
	From int64
	// Payloads also verifies the checksum of each payload.
	Payloads bool
}

const (
	scanWindow   = 4 << 10  // bytes read for a header and the short records after it
	verifyWindow = 64 << 10 // the same if payloads are read
)

// Scan reads the records of segment id, of size bytes, in file order. For a range without a good record it yields a
// *DamageError and continues at the next header; a caller that trusts only an unbroken sequence stops there. Any
// other error is an error of reading, and is the last value.
//
// A payload could contain the image of a record of this very segment. Scan can mistake it for a record only inside
// damage, and even then its key names its content.
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
	n    int   // valid bytes in buf
}

// at returns n bytes at off, valid until the next call. io.ErrUnexpectedEOF means that the file has fewer.
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

// record reads the record at offset at, and returns where the next one begins.
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

// nextHeader returns the offset of the first good record header at or after off.
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

// sum is the checksum of n bytes at an offset.
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
