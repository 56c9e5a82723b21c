package spill

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"bowstring/schema"
)

// The key space of the index.
const (
	prefixEntry   = 'e' // + key[32] -> entry
	prefixDataset = 'd' // + number u32 BE -> name
)

// keyClean is there while nobody has the cache open, if it was closed in order.
var keyClean = []byte("m/clean")

const (
	memTableSize = 1 << 20
	indexCache   = 1 << 20 // it is read on opening only
	indexQueue   = 4096    // changes that wait to be written
	entrySize    = 48
	entryKey     = 1 + len(schema.Key{})

	// batchTime is how long changes wait for others to go with.
	batchTime = 20 * time.Millisecond
)

// index keeps on the disk what the table has in memory. It is read on opening only. Changes are written by a goroutine
// of its own, in the order in which they come. Each batch is handed to the kernel, so that it outlives the process, and
// its log is not synced: what a crash of the machine takes, or finds older than the segments, the checksums of blobs
// tell. When it cannot be written any more, the cache goes on without it.
type index struct {
	db      *pebble.DB // nil of a cache on a model, which writes nothing
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

func openIndex(dir string, fs vfs.FS, log *slog.Logger) (_ *index, err error) {
	x := &index{log: log, changes: make(chan change, indexQueue), closing: make(chan struct{}),
		done: make(chan struct{})}
	x.fs = &fallibleFS{FS: fs, logs: ".log", failed: func(err error) {
		log.Error("the index of the spill cannot be written: what is stored from now on is lost when the process ends",
			"error", err)
	}}
	defer func() {
		// A damaged database may be beyond its own checks.
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: open the index %s: %v", schema.ErrDataLoss, dir, r)
		}
	}()
	opts := &pebble.Options{
		FS:     x.fs,
		Logger: indexLogger{log},
		// Raised on purpose only: the number of the format has to be raised with it.
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

// load reads the index. It takes note that the cache is in use from now on.
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

// write writes changes until there are no more.
func (x *index) write() {
	defer close(x.done)
	defer func() {
		if r := recover(); r != nil { // the database could not go on
			x.fs.fail(fmt.Errorf("%v", r))
			for range x.changes { // to nowhere
				x.dropped.Add(1)
			}
		}
	}()
	b := x.db.NewBatch()
	pause := time.NewTimer(batchTime)
	defer pause.Stop()
	for c := range x.changes {
		x.put(b, &c)
		// What comes in a while goes with it, and wakes nobody up when it comes.
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

// setOf is the change that records what is in a slot.
func setOf(s *slot) change {
	c := change{key: s.key}
	encodeEntry(s, &c.value)
	return c
}

// note has a change written. It waits while too many do.
func (x *index) note(c change) {
	if x.db != nil {
		x.changes <- c
	}
}

// remove removes what is recorded of a blob. It does not wait: an entry that stays tells of bytes that are gone, which
// a reader finds out.
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

func (x *index) lost() bool { return x.fs != nil && x.fs.broken.Load() }

// close writes what waits, and that the cache was closed in order if it was.
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

// indexLogger passes what the database says to slog.
type indexLogger struct{ log *slog.Logger }

func (indexLogger) Infof(string, ...any) {}

func (l indexLogger) Errorf(format string, args ...any) {
	l.log.Warn("index of the spill", "message", fmt.Sprintf(format, args...))
}

// Fatalf is called where the database cannot go on.
func (l indexLogger) Fatalf(format string, args ...any) {
	panic("spill: the index cannot go on: " + fmt.Sprintf(format, args...))
}
