package segment

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// ErrRetired says that the segment of a location is not, or no longer, in the set. A caller whose index may have
// changed looks the location up again.
var ErrRetired = errors.New("the segment was retired")

// Options configures a Set.
type Options struct {
	// MaxBytes is the size of a segment at which a new one begins; 1 GiB if 0. A larger blob gets a segment of its
	// own.
	MaxBytes int64
	// KeepFree is the free disk space that appends must leave.
	KeepFree int64
	// NewID returns the number of the next segment. It is called before the file is created, and must never return a
	// number twice, even after a crash.
	NewID func() (uint32, error)
	// Free returns the free space of f's file system; nil asks the kernel.
	Free func(f *os.File) (int64, error)
	// AllocateBytes is how many bytes are allocated on the disk at once; 16 MiB if 0.
	AllocateBytes int64
	// NoSync omits the sync of the directory when a segment is created, and leaves writeback to the kernel: for a
	// caller that need not find the blobs after a crash of the machine.
	NoSync bool
	// Direct writes blobs of at least 32 KiB past the page cache, if the file system supports it, in whole blocks
	// without other records: for data that is read much later. Reads are the same. With NoSync, Scan finds damage
	// where a block was left partly empty for that.
	Direct bool
	// ReadOnly changes no file, and allows no appends.
	ReadOnly bool
	// Grow, if not nil, is called before disk space is taken, in whole blocks of 4 KiB, and refuses by returning
	// false. A negative n is space that was not taken after all. It is not called for what Trim, Punch and Retire
	// release.
	Grow func(n int64) bool
	// Model, if not nil, replaces files: nothing is stored, and space is counted as if there were files.
	Model *Model
	// Fault, if not nil, is called before each operation on a file, which fails with the error it returns: for tests
	// of disk faults.
	Fault func(op Op, path string) error
}

// Op is an operation on a segment's file, for Options.Fault.
type Op string

// The operations.
const (
	OpCreate   Op = "create"
	OpAllocate Op = "allocate"
	OpWrite    Op = "write"
	OpRead     Op = "read"
	OpPunch    Op = "punch"
	OpTrim     Op = "trim"
	OpRemove   Op = "remove"
	OpSync     Op = "sync"
)

// Location is where a blob's payload is.
type Location struct {
	Segment uint32
	Offset  int64
	Length  int64
}

// Set is the segments in one directory. At most one of them is appended to. It is safe for concurrent use.
type Set struct {
	dir   string
	opts  Options
	alloc allocator
	io    directIO
	// present is shared by all segments.
	present presence
	// table is replaced, never changed, so that readers need no lock.
	table atomic.Pointer[map[uint32]*Segment]

	mu     sync.Mutex // guards active, closed and replacing table
	active *Segment
	closed bool
}

// NewSet returns a set over dir, which must exist. It opens no segment: the caller attaches them.
func NewSet(dir string, opts Options) *Set {
	if opts.MaxBytes == 0 {
		opts.MaxBytes = 1 << 30
	}
	if opts.Free == nil {
		opts.Free = freeSpace
	}
	if opts.AllocateBytes == 0 {
		opts.AllocateBytes = allocation
	}
	s := &Set{dir: dir, opts: opts, io: directIO{buffers: newDirectBuffers()}, alloc: allocator{
		keep: opts.KeepFree, free: opts.Free, atOnce: opts.AllocateBytes, grow: opts.Grow, fault: opts.Fault,
	}}
	s.table.Store(&map[uint32]*Segment{})
	return s
}

// fileSuffix is the end of the names of segment files.
const fileSuffix = ".seg"

// FileName is the name of segment id's file in the directory of its set.
func FileName(id uint32) string { return fmt.Sprintf("%08x%s", id, fileSuffix) }

// List returns the numbers of the segment files in dir, in ascending order.
func List(dir string) ([]uint32, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var ids []uint32
	for _, e := range entries {
		digits, ok := strings.CutSuffix(e.Name(), fileSuffix)
		if !ok || len(digits) != 8 {
			continue
		}
		if id, err := strconv.ParseUint(digits, 16, 32); err == nil {
			ids = append(ids, uint32(id))
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// Attach opens an existing segment. Its data ends at end. The first durable bytes of it are on stable storage;
// bytes beyond end are never read. With appendTo, appends continue at end, which must then be the end of the file.
func (s *Set) Attach(id uint32, end, durable int64, appendTo bool) (*Segment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	capacity := int64(0)
	if appendTo && end < s.opts.MaxBytes {
		capacity = s.opts.MaxBytes
	}
	g, err := openSegment(filepath.Join(s.dir, FileName(id)), id, end, capacity, s.opts.ReadOnly)
	if err != nil {
		return nil, err
	}
	g.durable.Store(min(durable, end))
	g.fault, g.present = s.opts.Fault, &s.present
	s.replace(func(t map[uint32]*Segment) { t[id] = g })
	if capacity > 0 {
		s.active = g
	}
	return g, nil
}

// replace changes a copy of the table. s.mu is held.
func (s *Set) replace(change func(map[uint32]*Segment)) {
	t := maps.Clone(*s.table.Load())
	change(t)
	s.table.Store(&t)
}

// Segments returns the segments of the set by number.
func (s *Set) Segments() []*Segment {
	t := *s.table.Load()
	list := make([]*Segment, 0, len(t))
	for _, id := range slices.Sorted(maps.Keys(t)) {
		list = append(list, t[id])
	}
	return list
}

// Footprint is the most space of a payload of n bytes in the set's files, with header and padding. Options.Direct may
// add the rest of the block before it.
func (s *Set) Footprint(n int64) int64 {
	if s.opts.Direct && n >= directMin {
		return Blocks(Footprint(n))
	}
	return Footprint(n)
}

// span is the size of a segment that has only a payload of n bytes.
func (s *Set) span(n int64) int64 {
	if size := s.Footprint(n); size%Block == 0 {
		return Block + size
	}
	return HeaderSize + Footprint(n)
}

// Segment returns the segment with a number, nil if there is none.
func (s *Set) Segment(id uint32) *Segment { return (*s.table.Load())[id] }

// Holds reports whether the set has the segment and loc is within its data.
func (s *Set) Holds(loc Location) bool {
	g := s.Segment(loc.Segment)
	return g != nil && loc.Offset >= HeaderSize && loc.Length >= 0 && loc.Length <= g.Size()-loc.Offset
}

// Get returns the bytes at loc. They stay in place until the caller releases the blob, even if the segment is retired
// or the set closed. Get waits for pages that are not in memory. The caller verifies the bytes.
func (s *Set) Get(loc Location) (schema.Blob, error) {
	g := s.Segment(loc.Segment)
	if g == nil || !g.pin() {
		return schema.Blob{}, fmt.Errorf("segment %d: %w", loc.Segment, ErrRetired)
	}
	return g.read(loc.Offset, loc.Length)
}

// Active returns the number of the segment that is appended to, if there is one.
func (s *Set) Active() (id uint32, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active == nil {
		return 0, false
	}
	return s.active.id, true
}

// Roll seals the active segment: the next append begins a new one.
func (s *Set) Roll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active != nil {
		s.active.seal()
		s.active = nil
	}
}

// Sync brings everything appended before the call to stable storage.
func (s *Set) Sync() error {
	for _, g := range s.Segments() {
		if !g.pin() {
			continue // retired: it is not needed any more
		}
		err := g.Sync()
		g.Unpin()
		if err != nil {
			return err
		}
	}
	return nil
}

// Retire removes a sealed segment from the set and unlinks its file. The space is free when the last blob read from
// it is released. The caller's index must no longer name the segment, durably.
func (s *Set) Retire(id uint32) error {
	s.mu.Lock()
	g := s.Segment(id)
	if g == nil || g == s.active {
		s.mu.Unlock()
		return fmt.Errorf("%w: segment %d is not a sealed segment of this set", schema.ErrInvalid, id)
	}
	s.replace(func(t map[uint32]*Segment) { delete(t, id) })
	s.mu.Unlock()
	defer g.Unpin()
	if err := g.failing(OpRemove); err != nil {
		return err
	}
	if g.model != nil {
		return nil
	}
	return os.Remove(g.path)
}

// Close releases all segments. Blobs handed out stay valid until released. Appends in flight complete; Close does not
// sync.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.active = nil
	segments := s.Segments()
	s.table.Store(&map[uint32]*Segment{})
	for _, g := range segments {
		g.Unpin()
	}
	s.io.writers.close()
}

// SyncDir makes the entries of a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Append writes a blob and returns its location. It is readable at once, and on stable storage after the next Sync.
// sum is the payload's checksum, which is not computed again. payload is not kept.
//
// A full disk is a schema.ErrLimit that wraps syscall.ENOSPC.
func (s *Set) Append(key schema.Key, sum schema.Sum, payload []byte) (Location, error) {
	r, err := s.Reserve(int64(len(payload)))
	if err != nil {
		return Location{}, err
	}
	if err := r.Write(key, sum, payload); err != nil {
		return Location{}, err
	}
	return r.Location(), nil
}

// Reservation is space for a blob that is not written yet. Its segment stays open until Write, which must be called
// exactly once.
type Reservation struct {
	segment *Segment
	at      int64 // of the record's header
	n       int64 // bytes of payload
}

// Reserve takes space for a blob of n bytes, as Append does, without writing it: for a caller that has to know the
// location before.
func (s *Set) Reserve(n int64) (Reservation, error) {
	g, at, err := s.reserve(n)
	return Reservation{g, at, n}, err
}

// Location is where the blob will be.
func (r Reservation) Location() Location {
	return Location{Segment: r.segment.id, Offset: r.at + HeaderSize, Length: r.n}
}

// Write fills the space. payload must have the reserved length.
func (r Reservation) Write(key schema.Key, sum schema.Sum, payload []byte) error {
	one := [1]Write{{Reservation: r, Key: key, Sum: sum, Payload: payload}}
	WriteAll(one[:])
	return one[0].Err
}

// Write is a blob with the space reserved for it.
type Write struct {
	Reservation
	Key     schema.Key
	Sum     schema.Sum
	Payload []byte // of the reserved length; not kept
	// Frame is the frame of the payload (see schema.Blob), or nil. WriteAll fills in the rest of it.
	Frame []byte
	Err   error // set by WriteAll
}

// record is the content of the record's header.
func (w *Write) record() Record {
	return Record{Key: w.Key, Offset: w.at + HeaderSize, Length: w.n, Sum: w.Sum}
}

// WriteAll fills the space of several blobs, as Reservation.Write does for one, and sets the error of each.
// Consecutive blobs that are written directly go to the disk together.
func WriteAll(writes []Write) {
	for len(writes) > 0 {
		g, n := writes[0].segment, 1
		if _, end := g.span(writes[0].at, writes[0].n); g.isDirect(writes[0].n) {
			for first := writes[0].at; n < len(writes); n++ {
				w := &writes[n]
				_, next := g.span(w.at, w.n)
				if w.segment != g || w.at != end || !g.isDirect(w.n) || next-first > directSize {
					break
				}
				end = next
			}
		}
		g.write(writes[:n])
		for range n {
			g.Unpin()
		}
		writes = writes[n:]
	}
}

// reserve finds room in the active segment or a new one, and pins it.
func (s *Set) reserve(n int64) (*Segment, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.closed {
			return nil, 0, fmt.Errorf("%w: the segments are closed", schema.ErrUnavailable)
		}
		if s.opts.ReadOnly {
			return nil, 0, fmt.Errorf("%w: the segments are open for reading alone", schema.ErrInvalid)
		}
		if g := s.active; g != nil {
			at, ok, err := g.reserve(n, s.alloc)
			if err != nil {
				return nil, 0, err
			}
			if ok {
				// The set's own reference keeps the active segment alive.
				g.refs.Add(1)
				return g, at, nil
			}
			g.seal()
			s.active = nil
		}
		if err := s.create(n); err != nil {
			return nil, 0, err
		}
	}
}

// create makes a new segment with room for a blob of n bytes the active one. s.mu is held.
func (s *Set) create(n int64) error {
	id, err := s.opts.NewID()
	if err != nil {
		return fmt.Errorf("number a new segment: %w", err)
	}
	path := filepath.Join(s.dir, FileName(id))
	if s.opts.Grow != nil && !s.opts.Grow(Block) {
		return fmt.Errorf("%w: no %d bytes may be taken for the header of %s", schema.ErrLimit, Block, path)
	}
	g, err := func() (*Segment, error) {
		if s.opts.Fault != nil {
			if err := s.opts.Fault(OpCreate, path); err != nil {
				return nil, err
			}
		}
		if s.opts.Model != nil {
			return s.opts.Model.segment(path, id, max(s.opts.MaxBytes, s.span(n))), nil
		}
		g, err := createSegment(path, id, max(s.opts.MaxBytes, s.span(n)))
		if err != nil {
			return nil, err
		}
		if s.opts.NoSync {
			return g, nil
		}
		if err := SyncDir(s.dir); err != nil {
			g.Unpin()
			return nil, errors.Join(err, os.Remove(path))
		}
		return g, nil
	}()
	if err != nil {
		s.alloc.giveBack(Block)
		return fmt.Errorf("create segment: %w", err)
	}
	g.fault, g.noSync, g.present = s.opts.Fault, s.opts.NoSync, &s.present
	if s.opts.Direct && s.opts.Model == nil {
		g.direct, g.io = openDirect(path), &s.io
	}
	if s.opts.Grow != nil {
		g.reserved = Block // counted above
	}
	s.replace(func(t map[uint32]*Segment) { t[id] = g })
	s.active = g
	return nil
}

// rewriteBytes is the size of the buffer of Rewrite.
const rewriteBytes = 1 << 20

// Rewrite writes the bytes of a segment's file between two offsets over themselves, and syncs the file: for data that
// the kernel may have failed to store. In that case it may still have the bytes in memory, count them as stored, and
// report no error in later syncs. The segment must not be appended to in the meantime.
func (s *Set) Rewrite(id uint32, from, to int64) (err error) {
	path := filepath.Join(s.dir, FileName(id))
	defer func() {
		if err != nil {
			err = fmt.Errorf("write segment %s again: %w", path, err)
		}
	}()
	fault := func(op Op) error {
		if s.opts.Fault == nil {
			return nil
		}
		return s.opts.Fault(op, path)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	buf := make([]byte, rewriteBytes)
	for at := from; at < to; {
		n, err := f.ReadAt(buf[:min(to-at, rewriteBytes)], at)
		if n == 0 {
			if errors.Is(err, io.EOF) {
				break
			}
			return err
		}
		if err := fault(OpWrite); err != nil {
			return err
		}
		if _, err := f.WriteAt(buf[:n], at); err != nil {
			return err
		}
		at += int64(n)
	}
	if err := fault(OpSync); err != nil {
		return err
	}
	return unix.Fdatasync(int(f.Fd()))
}

// Model is a disk in a simulation. The segments of a Set with a model have numbers, offsets, allocated and released
// space, seals and pins as others do, by the same code. They have no files, and store no bytes.
type Model struct {
	// Bytes returns what a read of a blob of n bytes returns. The slice is not written to, and must not change.
	Bytes func(n int64) []byte
	// Wait is called for each read and each write with the number of bytes. It returns when the simulated disk is
	// done, and may be called concurrently.
	Wait func(op Op, n int64)
}

// segment returns a segment without a file.
func (m *Model) segment(path string, id uint32, capacity int64) *Segment {
	s := &Segment{id: id, path: path, capacity: capacity, model: m}
	s.written.L = &s.mu
	s.refs.Store(1)
	s.end.Store(HeaderSize)
	return s
}

// read is Segment.read; the caller's pin passes to the blob.
func (m *Model) read(s *Segment, n int64) schema.Blob {
	m.Wait(OpRead, n)
	return schema.NewBlob(m.Bytes(n), s)
}

// write is Segment.write for a run of blobs.
func (m *Model) write(run []Write) {
	var n int64
	for i := range run {
		n += run[i].n
	}
	m.Wait(OpWrite, n)
}

// allocator allocates disk space ahead of the writes that fill it. So a full disk shows before space in a segment is
// handed out, and files are laid out in long runs.
type allocator struct {
	// keep is the free space that must remain on the file system.
	keep int64
	free func(*os.File) (int64, error)
	// atOnce is how many bytes are allocated at once if there is room.
	atOnce int64
	// grow, if not nil, is called before space is taken, in whole blocks.
	grow  func(n int64) bool
	fault func(op Op, path string) error
}

// allocation is the default of Options.AllocateBytes.
const allocation = 16 << 20

// Block is the unit of allocation of file systems, and of a Set with a Grow function.
const Block = 4096

// Blocks rounds a number of bytes up to whole blocks.
func Blocks(n int64) int64 { return (n + Block - 1) / Block * Block }

// allocate extends the space of f, which ends at have, to at least need and at most limit, and returns where it ends.
func (a allocator) allocate(f *os.File, have, need, limit int64) (int64, error) {
	name := "a model"
	if f != nil {
		name = f.Name()
	}
	free, err := a.free(f)
	if err != nil {
		return have, fmt.Errorf("free space of %s: %w", name, err)
	}
	if free-(need-have) < a.keep {
		return have, fmt.Errorf("%w: disk full: %d bytes are free on the disk of %s, a write needs %d more and %d are "+
			"kept in reserve: %w",
			schema.ErrLimit, free, name, need-have, a.keep, unix.ENOSPC)
	}
	// Ask for a long run; if little is left, only for what is needed.
	refused := true
	for _, end := range []int64{min(max(need, have+a.atOnce), limit), need} {
		if a.grow != nil {
			end = Blocks(end)
		}
		if free-(end-have) < a.keep || a.grow != nil && !a.grow(end-have) {
			continue
		}
		refused = false
		if a.fault != nil {
			if err = a.fault(OpAllocate, name); err != nil {
				a.giveBack(end - have)
				continue
			}
		}
		if f == nil { // of a model
			return end, nil
		}
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, have, end-have)
		for errors.Is(err, unix.EINTR) {
			err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, have, end-have)
		}
		if err == nil || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
			return end, nil
		}
		a.giveBack(end - have)
	}
	if refused {
		return have, fmt.Errorf("%w: no %d bytes may be taken for %s", schema.ErrLimit, need-have, name)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return have, fmt.Errorf("%w: disk full: %d bytes for %s: %w", schema.ErrLimit, need-have, name, err)
	}
	return have, fmt.Errorf("allocate %d bytes for %s: %w", need-have, name, err)
}

// giveBack reports to grow that n bytes were not taken.
func (a allocator) giveBack(n int64) {
	if a.grow != nil {
		a.grow(-n)
	}
}

// freeSpace is the disk space that a process without privileges can use.
func freeSpace(f *os.File) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// Room is how many bytes of payload can be appended in allocated space; 0 if the segment is sealed.
func (s *Segment) Room() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealed {
		return 0
	}
	return max(0, min(s.reserved, s.capacity)-s.end.Load()-HeaderSize)
}

// Allocated is the space of the file, in whole blocks, if nothing was punched.
func (s *Segment) Allocated() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Blocks(max(s.reserved, s.end.Load()))
}

// Trim releases the space allocated beyond the end of a sealed segment, and returns how many bytes that were. If the
// segment is not sealed it releases nothing.
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
	// No write is in flight beyond the end.
	if s.model == nil {
		if err := s.file.Truncate(end); err != nil {
			return 0, fmt.Errorf("trim segment %d: %w", s.id, err)
		}
	}
	s.reserved = Blocks(end)
	return n, nil
}

// Cut releases what is allocated beyond the data of a segment that is not appended to, as a killed process may leave
// it.
func (s *Segment) Cut() error {
	if err := s.file.Truncate(s.end.Load()); err != nil {
		return fmt.Errorf("trim segment %d: %w", s.id, err)
	}
	return nil
}

// Punch releases the blocks between two offsets, multiples of Block, to the file system. They read as zeros from then
// on: the caller must know that no blob in them is pinned, or will be read. It returns errors.ErrUnsupported if the
// file system cannot do it.
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

// DataRuns yields the ranges of the file that are not holes, in order. Allocated space that was never written counts
// as a hole.
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
