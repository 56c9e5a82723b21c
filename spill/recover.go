package spill

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// The files in the directory of a cache.
const (
	formatFile   = "FORMAT"
	lockFile     = "LOCK"
	indexDir     = "index"
	blobsDir     = "blobs"
	formatName   = "bowstring-spill"
	formatNumber = 2
)

// format is the content of the file FORMAT.
type format struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
}

// prepareDirectory makes dir the directory of a cache of this format. A cache of another format, or a damaged one, is
// emptied, because a cache can be filled again. A directory with anything other than a cache is refused. The caller
// holds the lock of dir.
func prepareDirectory(dir string, log *slog.Logger) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	// foreign is an entry that no cache has.
	foreign := ""
	for _, e := range entries {
		if !slices.Contains([]string{formatFile, lockFile, indexDir, blobsDir, "lost+found"}, e.Name()) {
			foreign = e.Name()
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, formatFile))
	var f format
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if foreign == "" {
			foreign = firstOf(entries, indexDir, blobsDir)
		}
		if foreign != "" {
			return fmt.Errorf("%w: %s is not a spill directory: it has no file %s, and it is not empty (%s); name "+
				"another directory",
				schema.ErrInvalid, dir, formatFile, foreign)
		}
	case err != nil:
		return err
	case json.Unmarshal(data, &f) == nil && f == format{formatName, formatNumber}:
		return errors.Join(makeDir(filepath.Join(dir, indexDir)), makeDir(filepath.Join(dir, blobsDir)))
	case f.Format != formatName && (foreign != "" || f.Format != "" && firstOf(entries, indexDir, blobsDir) == ""):
		return fmt.Errorf("%w: %s is not a spill directory: its file %s does not say {\"format\":%q,…}, and it holds "+
			"%s; name another directory",
			schema.ErrInvalid, dir, formatFile, formatName, strings.TrimSpace(foreign+" "+f.Format))
	default:
		log.Warn("the spill has another format and begins anew", "directory", dir,
			"found", strings.TrimSpace(string(data[:min(len(data), 100)])), "format", formatName, "version",
			formatNumber)
	}
	return emptyDirectory(dir)
}

// firstOf returns the first entry with one of the names, or "".
func firstOf(entries []os.DirEntry, names ...string) string {
	for _, e := range entries {
		if slices.Contains(names, e.Name()) {
			return e.Name()
		}
	}
	return ""
}

// makeDir creates a directory, if it does not exist.
func makeDir(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// emptyDirectory removes the content of the cache in dir. FORMAT exists all the time, so that the directory stays
// recognizable as a cache.
func emptyDirectory(dir string) error {
	data, err := json.Marshal(format{formatName, formatNumber})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, formatFile), append(data, '\n'), 0o600); err != nil {
		return err
	}
	for _, name := range []string{indexDir, blobsDir} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.RemoveAll(path), makeDir(path)); err != nil {
			return err
		}
	}
	return segment.SyncDir(dir)
}

// holder is the content of the file LOCK: the process that has the directory. The lock itself is the kernel's and
// ends with the process, so a dead process does not keep the directory locked.
type holder struct {
	PID     int       `json:"pid"`
	Host    string    `json:"host"`
	Command string    `json:"command"`
	Since   time.Time `json:"since"`
}

// lockDirectory takes the lock of dir, or returns a schema.ErrUnavailable that names the holder.
func lockDirectory(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		var h holder
		buf := make([]byte, 64<<10)
		// The file may be empty: the holder writes it after it has the lock.
		n, _ := f.ReadAt(buf, 0) // an unreadable file is described as unknown
		who := "another process, which is just starting or ending"
		if json.Unmarshal(buf[:n], &h) == nil && h.PID != 0 {
			who = fmt.Sprintf("process %d on host %s since %s (%s)", h.PID, h.Host, h.Since.Format(time.RFC3339),
				h.Command)
		}
		return nil, errors.Join(fmt.Errorf("%w: the spill directory %s is in use by %s; give each process a "+
			"directory of its own",
			schema.ErrUnavailable, dir, who), f.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	data, err := json.Marshal(holder{os.Getpid(), host, strings.Join(os.Args, " "), time.Now().Truncate(time.Second)})
	if err == nil {
		if err = f.Truncate(0); err == nil {
			_, err = f.WriteAt(append(data, '\n'), 0)
		}
	}
	if err != nil && !errors.Is(err, unix.ENOSPC) { // on a full disk, the blobs can still be read
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// unlockDirectory releases the lock. The file stays: if it were unlinked, two processes could lock two files of the
// same name. Closing it would not release the lock, because a child process that is being started has the file open
// too.
func unlockDirectory(f *os.File) error {
	return errors.Join(f.Truncate(0), unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
}

// recover reads the index and opens the segments that it names. It does not read blobs: entries that are older than
// the segments, as after a crash, are detected when a blob is read.
func (c *Cache) recover() (err error) {
	if c.index, err = openIndex(c.path(indexDir), c.opts.fs, c.opts.Logger); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.index.close(false))
		}
	}()
	// New segments get numbers above those of all files and of all entries, so that an
	// outdated entry cannot refer to a new segment.
	sizes, next, err := c.segmentFiles()
	if err != nil {
		return err
	}
	clean, err := c.index.load(
		c.named.recovered,
		func(key *schema.Key, value *[entrySize]byte) {
			var s slot
			decodeEntry(value, &s)
			next = max(next, s.segment+1)
			// An entry whose segment is gone, or ends before the blob, is removed.
			if l := s.location(); l.Offset < 2*segment.HeaderSize || l.Offset+l.Length > sizes[s.segment] {
				c.index.note(change{key: *key, remove: true})
				return
			}
			_, to := c.table.add(key, live)
			decodeEntry(value, to)
		})
	if err != nil {
		return err
	}
	if err := c.attach(sizes, &next, clean); err != nil {
		return err
	}
	for i := range c.table.slots {
		if s := c.table.at(uint32(i)); s.state == live {
			c.set(s.dataset).enter(s)
		}
	}
	return nil
}

// segmentFiles returns the sizes of the segment files, and a number above all of theirs.
func (c *Cache) segmentFiles() (sizes map[uint32]int64, next uint32, err error) {
	ids, err := segment.List(c.path(blobsDir))
	if err != nil {
		return nil, 0, err
	}
	sizes = make(map[uint32]int64, len(ids))
	for _, id := range ids {
		st, err := os.Stat(filepath.Join(c.path(blobsDir), segment.FileName(id)))
		if err != nil {
			return nil, 0, err
		}
		sizes[id] = st.Size()
		next = max(next, id+1)
	}
	return sizes, next, nil
}

// attach opens the segments that hold blobs, and removes the others. After a crash it also determines which blocks
// are allocated, and releases those without a blob.
func (c *Cache) attach(sizes map[uint32]int64, next *uint32, clean bool) (err error) {
	sp := &c.space
	sp.blocks, sp.current = map[uint32]*blocks{}, noSegment
	sp.free, sp.keep, sp.failed = c.opts.free, c.opts.KeepFree, c.notGivenBack
	sp.budget.Store(c.opts.Bytes)
	sp.held.Store(fixedOverhead)
	if c.opts.Model == nil {
		if sp.dir, err = os.Open(c.opts.Dir); err != nil {
			return err
		}
	}
	defer func() {
		if err != nil && sp.dir != nil {
			err = errors.Join(err, sp.dir.Close())
		}
	}()
	sp.set = segment.NewSet(c.path(blobsDir), segment.Options{
		MaxBytes: c.opts.SegmentBytes, Direct: true, KeepFree: c.opts.KeepFree, Free: c.opts.free, Fault: c.opts.fault,
		Model: c.opts.Model, NoSync: true,
		AllocateBytes: min(segment.Blocks(c.opts.Bytes/256), 16<<20), Grow: sp.grow,
		NewID: func() (uint32, error) { // not called concurrently
			if *next == noSegment {
				return 0, fmt.Errorf("%w: segment numbers", schema.ErrLimit)
			}
			*next++
			return *next - 1, nil
		},
	})
	defer func() {
		if err != nil {
			sp.set.Close()
		}
	}()

	// The slots of each segment, with their offsets in the upper halves, so that they sort by offset.
	within := map[uint32][]uint64{}
	for i := range c.table.slots {
		s := c.table.at(uint32(i))
		within[s.segment] = append(within[s.segment], uint64(s.offset)<<32|uint64(i))
	}
	for id, size := range sizes {
		path := filepath.Join(c.path(blobsDir), segment.FileName(id))
		g := (*segment.Segment)(nil)
		if within[id] != nil {
			if g, err = sp.set.Attach(id, size, 0, false); err != nil {
				c.opts.Logger.Warn("a segment of the spill cannot be read and is removed", "error", err)
			}
		}
		if g == nil {
			for _, i := range within[id] {
				c.forget(uint32(i))
			}
			if err := os.Remove(path); err != nil {
				return err
			}
			continue
		}
		// Clients of an earlier process may still have the file mapped.
		held := g.Elsewhere()
		if err := c.survey(g, path, within[id], clean, held); err != nil {
			return err
		}
		if held {
			c.pinElsewhere(g, within[id])
		}
		if sp.blocks[id].live == 0 {
			if err := sp.retire(id); err != nil {
				return err
			}
		}
	}
	return nil
}

// forget removes a blob from the table that does not exist any more.
func (c *Cache) forget(i uint32) {
	s := c.table.at(i)
	c.index.note(change{key: s.key, remove: true})
	c.table.take(s)
	c.table.free(i)
}

// survey counts the blocks of a segment. If the cache was not closed cleanly, it also forgets blobs in released
// blocks, and releases blocks without a blob, unless another process reads the segment.
func (c *Cache) survey(g *segment.Segment, path string, slots []uint64, clean, elsewhere bool) error {
	sp := &c.space
	b := &blocks{users: []uint8{1}}
	sp.blocks[g.ID()] = b
	sp.files.Store(int64(len(sp.blocks)))
	var runs []run
	if !clean {
		slices.Sort(slots)
		if err := g.DataRuns(func(from, to int64) bool {
			runs = append(runs, run{from, segment.Blocks(to)})
			return true
		}); err != nil {
			return err
		}
	}
	// runs and slots are sorted, so one pass over both finds the entries whose blocks are
	// holes.
	rest := runs
	for _, k := range slots {
		i := uint32(k)
		l := c.table.at(i).location()
		if !clean {
			first, last := blocksOf(l)
			for len(rest) > 0 && rest[0].to <= first*segment.Block {
				rest = rest[1:]
			}
			if len(rest) == 0 || rest[0].from > first*segment.Block || rest[0].to < (last+1)*segment.Block {
				c.forget(i)
				continue
			}
		}
		sp.use(l)
		sp.held.Add(overhead)
	}
	used := int64(0)
	for _, n := range b.users {
		if n > 0 {
			used += segment.Block
		}
	}
	if !clean {
		c.elsewhere.unswept = c.elsewhere.unswept || elsewhere
		if err := g.Cut(); err != nil {
			return err
		}
		for _, r := range runs {
			if elsewhere {
				break
			}
			if err := c.punchUnused(g, b, r); err != nil {
				return err
			}
		}
	}
	held, err := allocated(path)
	if err == nil && !clean && !elsewhere && held > used {
		// Space that was allocated and never written looks like a hole, but is not one.
		err = c.punchUnused(g, b, run{0, g.Allocated()})
		if err == nil {
			held, err = allocated(path)
		}
	}
	if err != nil {
		return err
	}
	held = max(held, used)
	b.punched = g.Allocated() - held
	sp.held.Add(held)
	return nil
}

// run is a range of a file.
type run struct{ from, to int64 }

// punchUnused releases the blocks of a run without a blob.
func (c *Cache) punchUnused(g *segment.Segment, b *blocks, r run) error {
	used := func(at int64) bool { i := at / segment.Block; return i < int64(len(b.users)) && b.users[i] > 0 }
	for from := r.from; from < r.to; {
		to := from
		for to < r.to && !used(to) {
			to += segment.Block
		}
		if to > from && !c.space.wholeOnly.Load() {
			switch err := g.Punch(from, to); {
			case errors.Is(err, errors.ErrUnsupported):
				c.space.wholeOnly.Store(true)
			case err != nil:
				return err
			}
		}
		// Skip the blocks in use.
		for from = to; from < r.to && used(from); {
			from += segment.Block
		}
	}
	return nil
}

// allocated is the disk space of a file.
func allocated(path string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, err
	}
	return segment.Blocks(st.Blocks * 512), nil
}

// The key space of the index.
const (
	prefixEntry   = 'e' // + key[32] -> entry
	prefixDataset = 'd' // + number u32 BE -> name
)

// keyClean exists while no process has the cache open, if it was closed cleanly.
var keyClean = []byte("m/clean")

const (
	// Sizes of Pebble's buffers. The index is small: about 100 bytes per blob.
	memTableSize = 1 << 20
	indexCache   = 1 << 20 // read only on opening
	indexQueue   = 4096    // changes that wait to be written
	entrySize    = 48
	entryKey     = 1 + len(schema.Key{})

	// batchTime is how long a change waits for others to be written together.
	batchTime = 20 * time.Millisecond
)

// index stores the table on the disk. It is read only on opening. Its goroutine writes changes in the order in which
// they come. Each batch is passed to the kernel, so that it survives the process, but its log is not synced: after a
// crash of the machine, missing or outdated entries are detected by the checksums of blobs. When the index cannot be
// written any more, the cache continues without it.
type index struct {
	db      *pebble.DB // nil for a cache on a model, which writes nothing
	fs      *fallibleFS
	log     *slog.Logger
	changes chan change
	closing chan struct{}
	done    chan struct{}
	dropped atomic.Int64
}

// change is a change of the index: an entry (value), its removal, or a dataset's name.
type change struct {
	key    schema.Key
	remove bool
	number uint32
	name   string
	value  [entrySize]byte
}

// openIndex opens or creates the index, and starts its goroutine. The error is a
// schema.ErrDataLoss if the database is damaged.
func openIndex(dir string, fs vfs.FS, log *slog.Logger) (_ *index, err error) {
	x := &index{log: log, changes: make(chan change, indexQueue), closing: make(chan struct{}),
		done: make(chan struct{})}
	x.fs = &fallibleFS{FS: fs, logs: ".log", failed: func(err error) {
		log.Error("the index of the spill cannot be written: what is stored from now on is lost when the process ends",
			"error", err)
	}}
	defer func() {
		// The database may panic if it is badly damaged.
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: open the index %s: %v", schema.ErrDataLoss, dir, r)
		}
	}()
	opts := &pebble.Options{
		FS:     x.fs,
		Logger: indexLogger{log},
		// Raise it only together with the number of the cache's format.
		FormatMajorVersion: pebble.FormatTableFormatV6,
		CacheSize:          indexCache,
		MemTableSize:       memTableSize,
		MaxOpenFiles:       64,
		DisableTableStats:  true,
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { x.fs.fail(err) },
			DataCorruption:  func(info pebble.DataCorruptionInfo) { x.fs.fail(info.Details) },
		},
	}
	for i := range opts.Levels {
		opts.Levels[i].BlockSize = 32 << 10
	}
	if x.db, err = pebble.Open(dir, opts); err != nil {
		return nil, fmt.Errorf("open the index %s: %w", dir, err)
	}
	go x.write()
	return x, nil
}

// load reads the index, and records that the cache is in use.
func (x *index) load(dataset func(number uint32, name string),
	entry func(key *schema.Key, value *[entrySize]byte)) (clean bool, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: read the index: %v", schema.ErrDataLoss, r)
		}
	}()
	it, err := x.db.NewIter(nil)
	if err != nil {
		return false, fmt.Errorf("read the index: %w", err)
	}
	for it.First(); it.Valid(); it.Next() {
		k, v := it.Key(), it.Value()
		switch {
		case len(k) == entryKey && k[0] == prefixEntry && len(v) == entrySize:
			entry((*schema.Key)(k[1:]), (*[entrySize]byte)(v))
		case len(k) == 5 && k[0] == prefixDataset:
			dataset(binary.BigEndian.Uint32(k[1:]), string(v))
		case string(k) == string(keyClean):
			clean = true
		default:
			return false, errors.Join(fmt.Errorf("%w: the index has a record %q of %d bytes", schema.ErrDataLoss, k,
				len(v)), it.Close())
		}
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return false, fmt.Errorf("read the index: %w", err)
	}
	if clean {
		if err := x.db.Delete(keyClean, pebble.Sync); err != nil {
			return false, fmt.Errorf("write the index: %w", err)
		}
	}
	return clean, nil
}

// write writes changes until the channel is closed.
func (x *index) write() {
	defer close(x.done)
	defer func() {
		if r := recover(); r != nil { // the database has panicked
			x.fs.fail(fmt.Errorf("%v", r))
			for range x.changes { // drop the rest
				x.dropped.Add(1)
			}
		}
	}()
	b := x.db.NewBatch()
	pause := time.NewTimer(batchTime)
	defer pause.Stop()
	for c := range x.changes {
		x.put(b, &c)
		// Changes that come soon after are written with it, without waking this goroutine.
		pause.Reset(batchTime)
		select {
		case <-pause.C:
		case <-x.closing:
		}
		for n := len(x.changes); n > 0 && b.Count() < indexQueue; n-- {
			c := <-x.changes
			x.put(b, &c)
		}
		if !x.lost() {
			if err := b.Commit(pebble.Sync); err != nil {
				x.fs.fail(err)
			}
		}
		b.Reset()
	}
	_ = b.Close()
}

// put adds a change to a batch.
func (x *index) put(b *pebble.Batch, c *change) {
	var err error
	var key [entryKey]byte
	switch {
	case c.name != "":
		key[0] = prefixDataset
		binary.BigEndian.PutUint32(key[1:], c.number)
		err = b.Set(key[:5], []byte(c.name), nil)
	case c.remove:
		key[0] = prefixEntry
		copy(key[1:], c.key[:])
		err = b.Delete(key[:], nil)
	default:
		key[0] = prefixEntry
		copy(key[1:], c.key[:])
		err = b.Set(key[:], c.value[:], nil)
	}
	if err != nil {
		x.fs.fail(err)
	}
}

// setOf is the change that records a slot.
func setOf(s *slot) change {
	c := change{key: s.key}
	encodeEntry(s, &c.value)
	return c
}

// note queues a change. It blocks while the queue is full.
func (x *index) note(c change) {
	if x.db != nil {
		x.changes <- c
	}
}

// remove queues the removal of a blob's entry. It does not block: if the queue is full the entry stays, and refers to
// bytes that are gone, which a reader detects.
func (x *index) remove(key schema.Key) {
	if x.db == nil {
		return
	}
	select {
	case x.changes <- change{key: key, remove: true}:
	default:
		x.dropped.Add(1)
	}
}

// lost reports whether the index cannot be written any more.
func (x *index) lost() bool { return x.fs != nil && x.fs.broken.Load() }

// close writes the queued changes, and records a clean shutdown.
func (x *index) close(clean bool) (err error) {
	close(x.closing)
	close(x.changes)
	<-x.done
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("close the index: %v", r)
		}
	}()
	if clean && !x.lost() && x.dropped.Load() == 0 {
		err = x.db.Set(keyClean, []byte{1}, pebble.Sync)
	}
	err = errors.Join(err, x.db.Close())
	if x.lost() {
		return nil // it was reported when it happened
	}
	return err
}

// encodeEntry writes a slot as an entry of the index: little-endian, in the order segment
// u32, offset u32 (in units of segment.Align), length u32, cost f32 (seconds), sum u64,
// position i64, dataset u32, uses u32, added u32, used u32 (stamps).
func encodeEntry(s *slot, v *[entrySize]byte) {
	le := binary.LittleEndian
	le.PutUint32(v[0:], s.segment)
	le.PutUint32(v[4:], s.offset)
	le.PutUint32(v[8:], s.length)
	le.PutUint32(v[12:], math.Float32bits(s.cost))
	le.PutUint64(v[16:], uint64(s.sum))
	le.PutUint64(v[24:], uint64(s.position))
	le.PutUint32(v[32:], s.dataset)
	le.PutUint32(v[36:], s.uses)
	le.PutUint32(v[40:], uint32(s.added))
	le.PutUint32(v[44:], uint32(s.used))
}

// decodeEntry is the inverse of encodeEntry.
func decodeEntry(v *[entrySize]byte, s *slot) {
	le := binary.LittleEndian
	s.segment = le.Uint32(v[0:])
	s.offset = le.Uint32(v[4:])
	s.length = le.Uint32(v[8:])
	s.cost = math.Float32frombits(le.Uint32(v[12:]))
	s.sum = schema.Sum(le.Uint64(v[16:]))
	s.position = int64(le.Uint64(v[24:]))
	s.dataset = le.Uint32(v[32:])
	s.uses = le.Uint32(v[36:])
	s.added = stamp(le.Uint32(v[40:]))
	s.used = stamp(le.Uint32(v[44:]))
}

// indexLogger passes the database's messages to slog.
type indexLogger struct{ log *slog.Logger }

// Infof drops messages about normal operation.
func (indexLogger) Infof(string, ...any) {}

// Errorf logs a warning: the database continues.
func (l indexLogger) Errorf(format string, args ...any) {
	l.log.Warn("index of the spill", "message", fmt.Sprintf(format, args...))
}

// Fatalf is called if the database cannot continue.
func (l indexLogger) Fatalf(format string, args ...any) {
	panic("spill: the index cannot go on: " + fmt.Sprintf(format, args...))
}
