// Package lineage keeps a record of the rows that streams have delivered. From it a
// caller can find out later which samples a step of a job had, on which rank.
//
// A plan is a pure function, so a stream in plan order needs only its ticket and one
// integer: how many rows it has delivered. For a stream in another order the log also
// keeps deviations: for each batch, which of the undelivered rows it took, as runs or as
// a bitmap, whichever is shorter. Samples that could not be read, and their substitutes,
// do not follow from the plan, and are recorded as they are.
//
// The record is a ring of files in a directory ([Log]): beginning a new file removes the
// oldest. Each file can be read by itself: a stream that continues in a new file begins
// there with the ticket that resumes it. A record is written to the kernel before its
// batch is sent, so a killed process loses nothing of it.
//
// The package knows rows by their numbers in a stream. It knows no plans, positions or
// ids. It does not check rights either: its caller does.
//
// Begin reading with [Log.Begin] and [Recorder.Batch] for writing, with [Log.Search] and
// [Piece.Served] for reading. docs/formats.md describes the files.
package lineage

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// Options tunes a Log. The zero value of each field but Dir stands for its default.
type Options struct {
	// Dir is the directory. Open makes it if it does not exist. One server uses it at a
	// time.
	Dir string
	// MaxBytes bounds the size of all files together. A search reads one file at a time
	// into memory, 1/8 of MaxBytes. Default 64 MiB, minimum 1 MiB.
	MaxBytes int64
	// PieceBytes bounds the deviations of one piece. A stream that has written more
	// begins a new piece, with the ticket of its next batch. To find the rows of a step,
	// a reader replays one piece at most. Default 256 KiB.
	PieceBytes int64
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Logger gets an error when the directory cannot be written. Default slog.Default().
	Logger *slog.Logger
}

// files is the number of files in the ring. The oldest file is removed as a whole. With
// fewer files a removal would drop more of the record at once; with more files each would
// be smaller, and streams would write their heads more often.
const files = 8

// leastBytes is the minimum of MaxBytes. A record may have a quarter of a file, so 32 KiB
// at this minimum: enough for the head of an ordinary stream.
const leastBytes = 1 << 20

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.MaxBytes == 0 {
		o.MaxBytes = 64 << 20
	}
	if o.PieceBytes == 0 {
		o.PieceBytes = 256 << 10
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate returns an error that names the first field without a sensible value.
func (o *Options) Validate() error {
	switch {
	case o.Dir == "":
		return &schema.FieldError{Field: "Dir", Got: "nothing", Want: "a directory"}
	case o.MaxBytes < leastBytes:
		return &schema.FieldError{Field: "MaxBytes", Got: fmt.Sprint(o.MaxBytes),
			Want: fmt.Sprintf("%d bytes or more", leastBytes)}
	case o.PieceBytes < 1:
		return &schema.FieldError{Field: "PieceBytes", Got: fmt.Sprint(o.PieceBytes), Want: "1 byte or more"}
	}
	return nil
}

// Log is the record. It is safe for concurrent use; a nil Log records nothing. Its one
// goroutine syncs full files, runs only while there are some, and ends before Close
// returns.
type Log struct {
	opts Options
	// lock is locked (flock) while the Log is open, so that two servers do not write to
	// one directory. The kernel unlocks it when the process ends.
	lock *os.File
	sync func(*os.File) error // syncs a file to the disk; a field because tests make it slow or fail

	// looking is a semaphore of one: all searches together hold one file in memory.
	looking chan struct{}
	// paused is the time, in Unix nanoseconds, until which nothing is written because a
	// write failed; 0 if the last write succeeded.
	paused atomic.Int64

	syncing sync.WaitGroup // for the goroutine that syncs files; grows under mu only while not closed

	mu      sync.Mutex
	closed  bool
	busy    bool       // that goroutine runs
	list    []*segment // the oldest first; the last one is written to
	pieces  uint32     // the number of the last piece
	streams int64      // the number of the last stream
}

// segment is one file of the record. A segment that another process began is read only:
// its last record may be incomplete, and a record that is appended after it would not be
// found.
type segment struct {
	number int64
	begun  time.Time // no stream in it began earlier; zero if it has no stream
	own    bool      // this process has begun it, and may append to it
	size   int64     // guarded by Log.mu
	synced bool      // it is on the disk, or is being synced; guarded by Log.mu

	// mu keeps file open while a search reads from it or a count is written to it. If
	// both mutexes are needed, Log.mu is taken first.
	mu   sync.Mutex
	file *os.File // nil once it is removed or closed; guarded by mu
}

// suffix is the end of the files' names. Other files of the directory are not touched.
const suffix = ".lineage"

// Open opens or makes the directory. If another process uses the directory, the error is
// a schema.ErrUnavailable. The caller closes the Log.
func Open(opts Options) (*Log, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("lineage: %w", err)
	}
	if err := os.MkdirAll(opts.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("lineage: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(opts.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return nil, fmt.Errorf("lineage: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: another server keeps what it served in %s: %w", schema.ErrUnavailable,
			opts.Dir, err), lock.Close())
	}
	l := &Log{opts: opts, lock: lock, sync: (*os.File).Sync, looking: make(chan struct{}, 1)}
	if err := l.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("lineage: %w", err), l.Close())
	}
	return l, nil
}

// load opens the files of earlier processes, and reads their heads: Kept needs the time
// of the first stream, and stream a number above all that were used. Files with other
// names are ignored.
func (l *Log) load() error {
	entries, err := os.ReadDir(l.opts.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries { // sorted
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok {
			continue
		}
		s := &segment{}
		if _, err := fmt.Sscanf(name, "%d", &s.number); err != nil {
			continue
		}
		if s.file, err = os.OpenFile(filepath.Join(l.opts.Dir, e.Name()), os.O_RDWR, 0); err != nil {
			return err
		}
		l.list = append(l.list, s)
		info, err := s.file.Stat()
		if err != nil {
			return err
		}
		s.size = info.Size()
	}
	slices.SortFunc(l.list, func(a, b *segment) int { return int(a.number - b.number) })
	for _, s := range l.list {
		_, err := s.read(func(h *Head) bool {
			if s.begun.IsZero() || h.Opened().Before(s.begun) {
				s.begun = h.Opened()
			}
			l.streams = max(l.streams, h.Stream)
			return false
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// stream returns a number for a stream that begins now. It is the time in Unix
// nanoseconds, because [Head.Opened] derives the beginning from it. If the clock stands
// or goes back, the number is one more than the last, so numbers still ascend.
func (l *Log) stream() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams = max(l.streams+1, l.opts.Now().UnixNano())
	return l.streams
}

// currentLocked returns the file that is written to, and begins a new one if the current
// one has no room for size bytes. More than a quarter of a file is a schema.ErrLimit:
// larger records would leave much of a file unused, and evict the record too soon.
func (l *Log) currentLocked(size int64) (*segment, error) {
	most := l.opts.MaxBytes / files
	if size > most/4 {
		return nil, fmt.Errorf("%w: %d bytes of a record of what was served; it may have %d", schema.ErrLimit, size,
			most/4)
	}
	if n := len(l.list); n > 0 && l.list[n-1].own && l.list[n-1].size+size <= most {
		return l.list[n-1], nil
	}
	s := &segment{number: 1, begun: l.opts.Now(), own: true}
	if n := len(l.list); n > 0 {
		s.number = l.list[n-1].number + 1
	}
	// Room is made before the file exists, so that the directory never exceeds MaxBytes.
	for l.bytesLocked() > l.opts.MaxBytes-most {
		if err := l.dropLocked(); err != nil {
			return nil, err
		}
	}
	path := l.path(s)
	var err error
	if s.file, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o640); err != nil {
		return nil, err
	}
	header := append([]byte(magic), make([]byte, 8)...)
	if _, err := s.file.Write(header); err != nil {
		return nil, errors.Join(err, s.file.Close(), os.Remove(path))
	}
	s.size = int64(len(header))
	l.list = append(l.list, s)
	if !l.busy {
		l.busy = true
		l.syncing.Go(l.syncFull)
	}
	return s, nil
}

// syncFull syncs the files that are complete, one after another. It holds no lock
// meanwhile, so streams continue however long the disk takes. Records are not synced one
// by one, because a sync for each batch would cost more than the batch.
func (l *Log) syncFull() {
	for {
		file := l.nextFull()
		if file == nil {
			return
		}
		if err := l.sync(file); err != nil && !errors.Is(err, os.ErrClosed) { // ErrClosed: it was removed
			l.failed(err)
		}
	}
}

// nextFull returns a complete file that is to be synced. If there is none, it returns
// nil, and the goroutine ends. It clears busy under the lock, so that a file that is
// completed afterwards starts a new goroutine.
func (l *Log) nextFull() *os.File {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.list[:max(len(l.list)-1, 0)] {
		if !s.synced {
			s.synced = true
			return s.file
		}
	}
	l.busy = false
	return nil
}

// path returns the path of a file. The name has twelve digits, so that names sort by age.
func (l *Log) path(s *segment) string {
	return filepath.Join(l.opts.Dir, fmt.Sprintf("%012d%s", s.number, suffix))
}

// bytesLocked returns the size of all files together.
func (l *Log) bytesLocked() (n int64) {
	for _, s := range l.list {
		n += s.size
	}
	return n
}

// dropLocked removes the oldest file. A search that reads the file finishes first.
func (l *Log) dropLocked() error {
	s := l.list[0]
	if err := os.Remove(l.path(s)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l.list = l.list[1:]
	return s.close()
}

// append adds records to one file. If from is nil, they begin a piece in the current
// file. Otherwise they continue a piece. A piece is stored in one file, so if from is not
// the current file, the error is errMoved. append returns the file and the offset of the
// records. The function make gets the number that a new piece would have.
func (l *Log) append(from *segment, make func(piece uint32) []byte) (s *segment, at int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, 0, errClosed
	}
	// The records are made with the lock held, because they contain the piece's number.
	b := make(l.pieces + 1)
	if s, err = l.currentLocked(int64(len(b))); err != nil {
		return nil, 0, err
	}
	if from != nil && s != from {
		return nil, 0, errMoved
	}
	if from == nil {
		l.pieces++
	}
	if _, err := s.file.WriteAt(b, s.size); err != nil {
		return nil, 0, err
	}
	at = s.size
	s.size += int64(len(b))
	return s, at, nil
}

var (
	errClosed = fmt.Errorf("%w: the record of what was served is closed", schema.ErrUnavailable)
	errMoved  = errors.New("another file is written to now")
)

// count overwrites the count of the record at an offset: how many rows the piece has
// delivered in order since that record. So a batch in order needs no record of its own.
// The error is errMoved if the file has been removed.
func (l *Log) count(s *segment, at, n int64) error {
	var b [8]byte
	putCount(b[:], n)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return errMoved
	}
	_, err := s.file.WriteAt(b[:], at+headerSize-8)
	return err
}

// isCurrent reports whether a file is the one that records are appended to.
func (l *Log) isCurrent(s *segment) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.closed && len(l.list) > 0 && l.list[len(l.list)-1] == s
}

// pause is how long nothing is written after a write has failed. With a full disk each
// batch would otherwise wait for a write that fails.
const pause = time.Second

// failed records that a write has failed, and logs the first failure of a series. No
// stream ends because of it; the rows are missing in the record.
func (l *Log) failed(err error) {
	now := l.opts.Now().UnixNano()
	if was := l.paused.Swap(now + int64(pause)); was == 0 && !errors.Is(err, errClosed) {
		l.opts.Logger.Error("what streams hand out cannot be recorded; lineage will not know of it", "directory",
			l.opts.Dir, "error", err)
	}
}

// ready reports whether the log may write: no write failed within the last pause.
func (l *Log) ready() bool {
	until := l.paused.Load()
	return until == 0 || l.opts.Now().UnixNano() >= until
}

// wrote records that a write has succeeded, and logs the end of a series of failures.
func (l *Log) wrote() {
	if l.paused.Load() != 0 && l.paused.Swap(0) != 0 {
		l.opts.Logger.Info("what streams hand out is recorded again", "directory", l.opts.Dir)
	}
}

// Kept returns the time since which streams are on record, zero if there is none, and the
// size of all files in bytes.
func (l *Log) Kept() (since time.Time, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.list {
		if since.IsZero() || !s.begun.IsZero() && s.begun.Before(since) {
			since = s.begun
		}
	}
	return since, l.bytesLocked()
}

// Close ends the record: rows that streams deliver afterwards are not in it. It syncs and
// closes the files of this process. A second call does nothing.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	list, ok := l.end()
	if !ok {
		return nil
	}
	l.syncing.Wait()
	var err error
	for _, s := range list {
		if s.own {
			err = errors.Join(err, l.sync(s.file))
		}
		err = errors.Join(err, s.close())
	}
	return errors.Join(err, l.lock.Close())
}

// end closes the record for writing, and returns the files. ok is false if end was called
// before.
func (l *Log) end() (list []*segment, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ok = !l.closed
	l.closed, list, l.list = true, l.list, nil
	return list, ok
}

// close closes the file. It waits for a search that reads it.
func (s *segment) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.file
	s.file = nil
	return f.Close()
}
