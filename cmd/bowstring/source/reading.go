package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"bowstring/fetch/object"
	"bowstring/schema"
)

const (
	// stretch is how many bytes of an object are read at once where all of it is read.
	stretch = 8 << 20
	// prefetchBytes bounds what is read ahead of its use, of all objects that are read
	// one behind the other.
	prefetchBytes = 64 << 20
	// prefetchStretches bounds their number: objects may be small.
	prefetchStretches = 64
	// aloneBytes is prefetchBytes of an object that is read on its own.
	aloneBytes = 6 * stretch
)

// reading reads objects from their beginnings to their ends: stretches ahead of where
// they are used, across the objects that come next. Bytes that are used a second time are
// read again, unless they are still in memory. It is safe for concurrent use.
type reading struct {
	from   *cloud
	ctx    context.Context //nolint:containedctx // ends what is read
	cancel context.CancelFunc
	next   map[string]string // the object behind an object, by path
	most   int64             // bytes read ahead, and not yet used

	running sync.WaitGroup
	mu      sync.Mutex
	have    map[stretchOf]*loaded
	used    []stretchOf      // that were used and may be freed, the oldest first
	unused  int64            // bytes that were read, or are being read, and were not used
	last    map[string]int64 // the stretch that was taken last, by path
}

// stretchOf is a stretch of an object.
type stretchOf struct {
	path  string
	index int64
}

// loaded is a stretch that is being read, or was.
type loaded struct {
	done chan struct{}
	buf  []byte
	err  error
	used bool
	pins int // that read from it
}

// keptStretches is how many stretches stay that were used.
const keptStretches = 6

// reading reads objects, in the order of their paths in the list.
func (c *cloud) reading(ctx context.Context, paths []string, most int64) *reading {
	r := &reading{from: c, next: map[string]string{}, most: most, have: map[stretchOf]*loaded{},
		last: map[string]int64{}}
	r.ctx, r.cancel = context.WithCancel(ctx)
	for i := 1; i < len(paths); i++ {
		r.next[paths[i-1]] = paths[i]
	}
	return r
}

// inOrder implements system.
func (c *cloud) inOrder(ctx context.Context, paths []string) sequence {
	return c.reading(ctx, paths, prefetchBytes)
}

// close ends what is being read, and waits for it.
func (r *reading) close() {
	r.cancel()
	r.running.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for at, l := range r.have {
		if l.used && l.pins == 0 && l.err == nil {
			r.from.twice.put(at, l.buf)
			delete(r.have, at)
		}
	}
}

// twice has what was read of objects that are read twice, from beginning to end, and are
// small. It is safe for concurrent use; nil keeps nothing.
type twice struct {
	mu   sync.Mutex
	read map[stretchOf][]byte
	done bool // all was read once
}

// twiceBytes is the size, together, up to which objects are kept whole between two
// readings.
const twiceBytes = prefetchBytes

// put keeps a stretch, and reports whether it does.
func (t *twice) put(at stretchOf, buf []byte) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.done {
		t.read[at] = buf
	}
	return !t.done
}

// take returns a stretch that was kept, once; nil if it was not.
func (t *twice) take(at stretchOf) []byte {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	buf := t.read[at]
	if t.done {
		delete(t.read, at)
	}
	return buf
}

// small reports whether files are small enough together to be kept for the second time
// that they are read.
func (f *Files) small(paths []string) bool {
	size := int64(0)
	for _, p := range paths {
		if info, err := f.stat(p); err == nil {
			size += info.Size()
		}
	}
	return size <= twiceBytes
}

// readTwice says that files will be read twice. Until the function that it returns is
// called, what is read of them is kept for the second time, if they are small.
func (f *Files) readTwice(paths []string) (again func()) {
	c, ok := f.system.(*cloud)
	if !ok || !f.small(paths) {
		return func() {}
	}
	t := &twice{read: map[stretchOf][]byte{}}
	c.twice = t
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.done = true
	}
}

// open opens an object.
func (r *reading) open(p string) (*File, error) {
	o, err := r.from.object(r.ctx, p)
	if err != nil {
		return nil, err
	}
	return &File{handle: &objectFile{reading: r, path: p, object: o}, size: o.Size, version: o.Version}, nil
}

// take returns a stretch of an object, and has those behind it read. The caller gives it
// back.
func (r *reading) take(p string, o object.Info, index int64) (*loaded, error) {
	at := stretchOf{p, index}
	r.mu.Lock()
	l := r.startLocked(at, o)
	l.pins++
	if !l.used {
		l.used = true
		r.unused -= int64(len(l.buf))
	}
	// Reads out of order do not count, such as that of a file's end with the table of its
	// parts.
	if last, ok := r.last[p]; index == 0 || ok && (index == last || index == last+1) {
		r.prefetchLocked(at, o)
	}
	r.last[p] = index
	r.mu.Unlock()
	<-l.done // which ends with the context of the reading
	if l.err != nil {
		r.give(at, l)
		return nil, l.err
	}
	return l, nil
}

// give gives a stretch back. One that could not be read is tried again when it is taken
// again.
func (r *reading) give(at stretchOf, l *loaded) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.pins--; l.pins > 0 {
		return
	}
	if l.err != nil {
		delete(r.have, at)
		return
	}
	r.used = append(slices.DeleteFunc(r.used, func(o stretchOf) bool { return o == at }), at)
	for len(r.used) > keptStretches {
		old := r.used[0]
		r.used = r.used[1:]
		if l := r.have[old]; l != nil && l.pins == 0 {
			if !r.from.twice.put(old, l.buf) {
				buffers.put(l.buf)
			}
			delete(r.have, old)
		}
	}
}

// leave drops what was read ahead of an object that is read no further.
func (r *reading) leave(p string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for at, l := range r.have {
		if at.path == p && !l.used {
			r.unused -= int64(len(l.buf))
			delete(r.have, at)
		}
	}
	delete(r.last, p)
}

// startLocked has a stretch read, unless it is there or being read.
func (r *reading) startLocked(at stretchOf, o object.Info) *loaded {
	if l := r.have[at]; l != nil {
		return l
	}
	if buf := r.from.twice.take(at); buf != nil {
		l := &loaded{done: make(chan struct{}), buf: buf}
		close(l.done)
		r.have[at] = l
		r.unused += int64(len(buf))
		return l
	}
	offset := at.index * stretch
	l := &loaded{done: make(chan struct{}), buf: buffers.get(min(stretch, o.Size-offset))}
	r.have[at] = l
	r.unused += int64(len(l.buf))
	r.running.Go(func() {
		l.err = r.from.read(r.ctx, o, offset, l.buf)
		close(l.done)
	})
	return l
}

// prefetchLocked has what follows a stretch read, as far as there is room.
func (r *reading) prefetchLocked(at stretchOf, o object.Info) {
	for range prefetchStretches {
		if at.index++; at.index*stretch >= o.Size {
			next, ok := r.next[at.path]
			if !ok {
				return
			}
			info, err := r.from.known(next)
			if err != nil {
				return // which shows when it is opened
			}
			at, o = stretchOf{next, -1}, info
			continue
		}
		size := min(stretch, o.Size-at.index*stretch)
		if r.have[at] == nil && r.unused+size > r.most {
			return
		}
		r.startLocked(at, o)
	}
}

// read reads a part of an object, in the version that was listed.
func (c *cloud) read(ctx context.Context, o object.Info, offset int64, buf []byte) error {
	err := Attempt(ctx, func() error { return c.from.Range(ctx, o.Key, o.Version, offset, buf) })
	if ctx.Err() == nil && interrupted(err) {
		c.gone.CompareAndSwap(nil, &err)
	}
	return err
}

// objectFile is an open object.
type objectFile struct {
	reading *reading
	own     *reading // that ends with it; nil where others go on with it
	path    string
	object  object.Info
	at      int64
}

// Read implements io.Reader.
func (f *objectFile) Read(p []byte) (int, error) {
	n, err := f.some(p, f.at)
	f.at += int64(n)
	return n, err
}

// some reads some bytes, at least one.
func (f *objectFile) some(p []byte, off int64) (int, error) {
	switch {
	case len(p) == 0:
		return 0, nil
	case off < 0:
		return 0, errors.New("before the beginning of the object")
	case off >= f.object.Size:
		return 0, io.EOF
	}
	index := off / stretch
	l, err := f.reading.take(f.path, f.object, index)
	if err != nil {
		return 0, err
	}
	n := copy(p, l.buf[off-index*stretch:])
	f.reading.give(stretchOf{f.path, index}, l)
	return n, nil
}

// ReadAt implements io.ReaderAt.
func (f *objectFile) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) {
		m, err := f.some(p[n:], off+int64(n))
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

// Seek implements io.Seeker.
func (f *objectFile) Seek(offset int64, whence int) (int64, error) {
	at, err := seekTo(f.at, f.object.Size, offset, whence)
	if err == nil {
		f.at = at
	}
	return at, err
}

func seekTo(at, size, offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += at
	case io.SeekEnd:
		offset += size
	}
	if offset < 0 {
		return 0, errors.New("before the beginning of the object")
	}
	return offset, nil
}

// Close implements io.Closer.
func (f *objectFile) Close() error {
	f.reading.leave(f.path)
	if f.own != nil {
		f.own.close()
	}
	return nil
}

// partsFile is an open object. Its caller reads parts of it at any place.
type partsFile struct {
	from   *cloud
	ctx    context.Context //nolint:containedctx // ends what is read
	object object.Info
	at     int64
	window []byte // what was read last, or more than was asked for
	begin  int64  // of window in the object
	least  int64  // that is read at once
}

// openParts opens an object of which parts are read; at least a given number of bytes at
// once, as the neighbours of what is wanted are often wanted next.
func (c *cloud) openParts(ctx context.Context, p string, least int64) (*File, error) {
	o, err := c.object(ctx, p)
	if err != nil {
		return nil, err
	}
	return &File{handle: &partsFile{from: c, ctx: ctx, object: o, least: least}, size: o.Size, version: o.Version}, nil
}

// Read implements io.Reader.
func (f *partsFile) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if f.at >= f.object.Size {
		return 0, io.EOF
	}
	if f.at < f.begin || f.at >= f.begin+int64(len(f.window)) {
		if err := f.load(f.at, int64(len(p))); err != nil {
			return 0, err
		}
	}
	n := copy(p, f.window[f.at-f.begin:])
	f.at += int64(n)
	return n, nil
}

// load reads at least the given number of bytes. At the end of the object those before it
// are read: a file is often read from there.
func (f *partsFile) load(at, n int64) error {
	if n > maxBlob {
		return fmt.Errorf("%w: %w", schema.ErrLimit, tooLarge(maxBlob))
	}
	end := min(at+max(n, f.least), f.object.Size)
	at = max(0, min(at, end-f.least))
	f.window, f.begin = make([]byte, end-at), at
	err := f.from.read(f.ctx, f.object, at, f.window)
	if err != nil {
		f.window = nil
	}
	return err
}

// ReadAt implements io.ReaderAt, for one goroutine.
func (f *partsFile) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errors.New("before the beginning of the object")
	}
	f.at = off
	n := 0
	for n < len(p) {
		m, err := f.Read(p[n:])
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

// Seek implements io.Seeker.
func (f *partsFile) Seek(offset int64, whence int) (int64, error) {
	at, err := seekTo(f.at, f.object.Size, offset, whence)
	if err == nil {
		f.at = at
	}
	return at, err
}

// Close implements io.Closer.
func (f *partsFile) Close() error { return nil }
