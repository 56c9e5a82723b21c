package backup

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"bowstring/fetch/store/tend"
	"bowstring/schema"
	"bowstring/spill/segment"
)

// Options tunes Write.
type Options struct {
	// Store names the store for people.
	Store string
	// Rate and Workers are those of tend.FetchOptions.
	Rate    int64
	Workers int
	// PackBytes is the size at which a pack is followed by a new one; 1 GiB if 0.
	PackBytes int64
	// Progress, if not nil, is called after each blob, never twice at once.
	Progress func(Report)
}

// Report is what Write has done so far.
type Report struct {
	Generation int64 `json:"generation"`
	Snapshots  int64 `json:"snapshots"`
	Selections int64 `json:"selections"`
	// Blobs are what the generation has, of which New were written.
	Blobs    int64 `json:"blobs"`
	Bytes    int64 `json:"bytes"`
	New      int64 `json:"new"`
	NewBytes int64 `json:"new_bytes"`
	// OfBytes is what there is, at most.
	OfBytes int64 `json:"of_bytes"`
}

// writer is one run of Write.
type writer struct {
	dir  string
	opts Options

	mu     sync.Mutex
	packs  []*pack // that can be looked into; replaced, never changed
	report Report
	used   map[string]bool // packs that have blobs of this generation
	next   int64           // number of the next pack
	open   *openPackFile   // being written, or nil
	fresh  map[schema.Key]struct{}
}

// Write adds a generation to the backup in dir, which is made if there is none: the
// snapshots and selections of the scope, and all blobs that they refer to. It is a
// schema.ErrUnavailable if another process writes there.
func Write(ctx context.Context, dir string, scope tend.Scope, opts Options) (_ Report, err error) {
	if opts.PackBytes <= 0 {
		opts.PackBytes = 1 << 30
	}
	if err := create(dir); err != nil {
		return Report{}, fmt.Errorf("backup: %w", err)
	}
	lock, err := lockDirectory(dir)
	if err != nil {
		return Report{}, fmt.Errorf("backup: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	w := &writer{dir: dir, opts: opts, used: map[string]bool{}, fresh: map[schema.Key]struct{}{}}
	err = w.run(ctx, scope)
	if err != nil {
		err = fmt.Errorf("backup: %w", err)
	}
	return w.report, errors.Join(err, w.close())
}

func (w *writer) run(ctx context.Context, scope tend.Scope) error {
	if err := w.prepare(); err != nil {
		return err
	}
	w.report.Snapshots, w.report.Selections = int64(len(scope.Snapshots)), int64(len(scope.Selections))
	_, w.report.OfBytes = scope.Size()
	// Cells of attached tables are blobs of the backup: it is to need nothing else.
	snaps, err := tend.Fetch(ctx, scope, tend.FetchOptions{Rate: w.opts.Rate, Workers: w.opts.Workers}, w.there, w.take)
	// Also when it was stopped: what was written is not to be read again.
	if err := errors.Join(err, w.seal()); err != nil {
		return err
	}
	c := &catalog{
		format: format{formatName, formatVersion}, Generation: w.report.Generation,
		Created: time.Now().UTC().Truncate(time.Second),
		Store:   w.opts.Store, Blobs: w.report.Blobs, Bytes: w.report.Bytes, Packs: []string{},
		Snapshots: snaps, Selections: scope.Selections, Numbering: scope.Numbering,
	}
	names, err := numbered(filepath.Join(w.dir, packsDir), indexSuffix)
	if err != nil {
		return err
	}
	for _, name := range names {
		if w.used[name] {
			c.Packs = append(c.Packs, name)
		}
	}
	if err := c.check(); err != nil { // before it is there: a catalog that cannot be read is no backup
		return fmt.Errorf("%w: the catalog would not be read: %w", schema.ErrInvalid, err)
	}
	return c.write(w.dir)
}

// prepare opens the packs there are, and removes what a writer that was killed left.
func (w *writer) prepare() error {
	list, err := generations(w.dir)
	if err != nil {
		return err
	}
	w.report.Generation = 1
	if len(list) > 0 {
		w.report.Generation = list[len(list)-1] + 1
	}
	if err := removeLeftovers(w.dir); err != nil {
		return err
	}
	folder := filepath.Join(w.dir, packsDir)
	whole, err := numbered(folder, indexSuffix)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, name := range whole {
		p, err := openPack(folder, name)
		if err != nil {
			return err
		}
		w.packs = append(w.packs, p)
		known[name] = true
	}
	tars, err := numbered(folder, tarSuffix)
	if err != nil {
		return err
	}
	for _, name := range tars {
		if !known[name] {
			if err := os.Remove(filepath.Join(folder, name+tarSuffix)); err != nil {
				return err
			}
		}
	}
	for _, name := range append(whole, tars...) {
		var n int64
		if _, err := fmt.Sscanf(name, "%d", &n); err == nil {
			w.next = max(w.next, n)
		}
	}
	w.next++
	return nil
}

func (w *writer) close() error {
	var err error
	for _, p := range w.packs {
		err = errors.Join(err, p.close())
	}
	return err
}

// there looks for a blob in the packs, the newest first.
func (w *writer) there(_ context.Context, ref schema.BlobRef) (bool, error) {
	w.mu.Lock()
	_, ok := w.fresh[ref.Key]
	packs := w.packs
	w.mu.Unlock()
	if ok { // a bitmap that is a row's blob as well
		return true, nil
	}
	for _, p := range slices.Backward(packs) {
		e, found, err := p.index.find(ref.Key)
		if err != nil {
			return false, err
		}
		if found && e.BlobRef == ref {
			w.count(ref, p.name, false)
			return true, nil
		}
	}
	return false, nil
}

func (w *writer) count(ref schema.BlobRef, pack string, fresh bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counted(ref, pack, fresh)
}

// counted is count with mu held.
func (w *writer) counted(ref schema.BlobRef, pack string, fresh bool) {
	w.used[pack] = true
	w.report.Blobs++
	w.report.Bytes += ref.Size
	if fresh {
		w.report.New++
		w.report.NewBytes += ref.Size
	}
	if w.opts.Progress != nil {
		w.opts.Progress(w.report)
	}
}

// openPackFile is a tar that is being written.
type openPackFile struct {
	name    string
	file    *os.File
	buffer  *bufio.Writer
	tar     *tar.Writer
	written int64 // to buffer
	entries []entry
}

// Write counts what the tar writer writes.
func (p *openPackFile) Write(b []byte) (int, error) {
	n, err := p.buffer.Write(b)
	p.written += int64(n)
	return n, err
}

// take appends a blob to the open pack.
func (w *writer) take(_ context.Context, ref schema.BlobRef, data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.fresh[ref.Key]; ok { // of two cells with the same bytes, the other came first
		return nil
	}
	if w.open == nil {
		if err := w.begin(); err != nil {
			return err
		}
	}
	p := w.open
	key := ref.Key.String()
	// The same blob makes the same bytes. A tar of old has names of a hundred characters.
	err := p.tar.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: key[:2] + "/" + key, Size: ref.Size, Mode: 0o444, ModTime: time.Unix(0, 0),
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", p.file.Name(), err)
	}
	at := p.written
	if _, err := p.tar.Write(data); err != nil {
		return fmt.Errorf("write %s: %w", p.file.Name(), err)
	}
	p.entries = append(p.entries, entry{ref, at})
	w.fresh[ref.Key] = struct{}{}
	w.counted(ref, p.name, true)
	if p.written < w.opts.PackBytes {
		return nil
	}
	return w.sealed()
}

// begin begins a pack. mu is held.
func (w *writer) begin() error {
	name := generationName(w.next)
	f, err := os.OpenFile(filepath.Join(w.dir, packsDir, name+tarSuffix), os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	p := &openPackFile{name: name, file: f, buffer: bufio.NewWriterSize(f, 1<<20)}
	p.tar = tar.NewWriter(p)
	w.next, w.open = w.next+1, p
	return nil
}

func (w *writer) seal() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sealed()
}

// sealed ends the open pack, if there is one: first the tar is on stable storage,
// then the index makes it a pack. mu is held.
func (w *writer) sealed() error {
	p := w.open
	if p == nil {
		return nil
	}
	w.open = nil
	err := errors.Join(p.tar.Close(), p.buffer.Flush())
	if err == nil {
		err = p.file.Sync()
	}
	if err = errors.Join(err, p.file.Close()); err != nil {
		// Nobody will read it, and the disk may be full.
		return errors.Join(fmt.Errorf("write %s: %w", p.file.Name(), err), os.Remove(p.file.Name()))
	}
	folder := filepath.Join(w.dir, packsDir)
	if err := segment.SyncDir(folder); err != nil {
		return err
	}
	if err := writeIndex(filepath.Join(folder, p.name+indexSuffix), p.entries); err != nil {
		return err
	}
	opened, err := openPack(folder, p.name)
	if err != nil {
		return err
	}
	clear(w.fresh)
	// Those who look into it hold no lock.
	w.packs = append(w.packs[:len(w.packs):len(w.packs)], opened)
	return nil
}

// create makes the directory of a backup, unless dir is one. A directory with
// something else in it is refused.
func create(dir string) error {
	if Is(dir) {
		return checkFormat(dir)
	}
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch e.Name() {
		case lockFile, generationsDir, packsDir, "lost+found": // a writer that was killed here left no BACKUP
		default:
			if leftover.MatchString(e.Name()) {
				continue
			}
			return fmt.Errorf("%w: %s is not empty, and holds no backup (%s): name another directory",
				schema.ErrInvalid, dir, schema.Quote(e.Name()))
		}
	}
	for _, name := range []string{generationsDir, packsDir} {
		if err := os.MkdirAll(filepath.Join(dir, name), dirMode); err != nil {
			return err
		}
	}
	data, err := json.Marshal(format{formatName, formatVersion})
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(filepath.Join(dir, formatFile), append(data, '\n'), fileMode); err != nil {
		return err
	}
	return segment.SyncDir(dir)
}

// lockDirectory takes the lock of a backup, which is the kernel's and ends with the process.
func lockDirectory(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("%w: another process writes the backup in %s", schema.ErrUnavailable, dir)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
