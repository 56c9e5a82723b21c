package segment

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"bowstring/schema"
)

// ErrRetired says that the segment a location names is not, or no longer, in
// the set. A caller whose index may have changed looks there again.
var ErrRetired = errors.New("the segment was retired")

// Options tunes a Set.
type Options struct {
	// MaxBytes is the size at which a segment is followed by a new one; 1 GiB
	// if 0. A blob that is larger gets a segment of its own.
	MaxBytes int64
	// KeepFree is the free disk space that appends must leave.
	KeepFree int64
	// NewID returns the number of the next segment. It is called before the
	// file is created and must never return a number twice, whatever crashes.
	NewID func() (uint32, error)
	// Free measures the free space of f's file system; nil asks the kernel.
	Free func(f *os.File) (int64, error)
	// Ahead is how many bytes are allocated on the disk at once; 16 MiB if 0.
	Ahead int64
	// NoSync leaves out the sync of the directory when a segment is made, and
	// leaves it to the kernel when to store what is written: for a caller that
	// need not find it after a crash of the machine.
	NoSync bool
	// Direct has blobs of 32 KiB and more written past the page cache, where the file system can do it, in whole blocks
	// that they share with no other: for what is written for later. Reading is the same. With NoSync, Scan finds damage
	// where a block was left for that.
	Direct bool
	// ReadOnly has no file changed: there are no appends.
	ReadOnly bool
	// Grow, if not nil, is called before space on the disk is taken, in whole
	// blocks of 4 KiB, and refuses by returning false. A negative n is space that
	// was not taken after all. What Trim and Punch give back, and retired
	// segments, it is not told of.
	Grow func(n int64) bool
	// Model, if not nil, is in the place of files: nothing is stored, and space is counted as of files.
	Model *Model
	// Fault, if not nil, is called before each operation on a file, which fails
	// with the error it returns: for tests of what a failing disk does.
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

// Location is where a blob's payload lies.
type Location struct {
	Segment uint32
	Offset  int64
	Length  int64
}

// Set is the segments in one directory, of which at most one is appended to.
// It is safe for concurrent use.
type Set struct {
	dir   string
	opts  Options
	alloc allocator
	io    directIO
	// present is what is known of pages, of all segments together.
	present presence
	// table is replaced, never changed, so that readers need no lock.
	table atomic.Pointer[map[uint32]*Segment]

	mu     sync.Mutex // guards active, closed and replacing table
	active *Segment
	closed bool
}

// NewSet returns a set over dir, which must exist. It opens nothing: the
// caller knows which segments there are.
func NewSet(dir string, opts Options) *Set {
	if opts.MaxBytes == 0 {
		opts.MaxBytes = 1 << 30
	}
	if opts.Free == nil {
		opts.Free = freeSpace
	}
	if opts.Ahead == 0 {
		opts.Ahead = allocation
	}
	s := &Set{dir: dir, opts: opts, io: directIO{buffers: newDirectBuffers()}, alloc: allocator{
		keep: opts.KeepFree, free: opts.Free, ahead: opts.Ahead, grow: opts.Grow, fault: opts.Fault,
	}}
	s.table.Store(&map[uint32]*Segment{})
	return s
}

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

// Attach opens an existing segment. Its data ends at end, of which the first
// durable bytes are on stable storage; what lies beyond end is never read. With
// appendTo, appends go on at end, which must then be the end of the file.
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

// Footprint is the space that a payload of n bytes takes in the set's files at most, header and padding included, but
// for the rest of a block that Options.Direct may have it leave before itself.
func (s *Set) Footprint(n int64) int64 {
	if s.opts.Direct && n >= directMin {
		return Blocks(Footprint(n))
	}
	return Footprint(n)
}

// span is the size of a segment that has a payload of n bytes alone.
func (s *Set) span(n int64) int64 {
	if size := s.Footprint(n); size%Block == 0 {
		return Block + size
	}
	return HeaderSize + Footprint(n)
}

// Segment returns the segment of that number, nil if there is none.
func (s *Set) Segment(id uint32) *Segment { return (*s.table.Load())[id] }

// Holds reports whether the set has the segment and loc lies within its data.
func (s *Set) Holds(loc Location) bool {
	g := s.Segment(loc.Segment)
	return g != nil && loc.Offset >= HeaderSize && loc.Length >= 0 && loc.Length <= g.Size()-loc.Offset
}

// Get returns the bytes at loc, which stay in place until the blob is
// released, whatever is retired or closed meanwhile. A page that is not in
// memory is waited for. Checking the bytes is up to the caller.
func (s *Set) Get(loc Location) (schema.Blob, error) {
	g := s.Segment(loc.Segment)
	if g == nil || !g.pin() {
		return schema.Blob{}, fmt.Errorf("segment %d: %w", loc.Segment, ErrRetired)
	}
	return g.read(loc.Offset, loc.Length)
}

// Active is the number of the segment that is appended to, if there is one.
func (s *Set) Active() (id uint32, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active == nil {
		return 0, false
	}
	return s.active.id, true
}

// Roll seals the active segment: the next append starts a new one.
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
			continue // retired: nobody needs it any more
		}
		err := g.Sync()
		g.Unpin()
		if err != nil {
			return err
		}
	}
	return nil
}

// Retire takes a sealed segment out of the set and unlinks its file, whose
// space is free when the last blob read from it is released. The caller's
// index must not name it any more, durably.
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

// Close lets go of all segments. Blobs handed out stay valid until released.
// Appends under way end well; it does not sync.
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
