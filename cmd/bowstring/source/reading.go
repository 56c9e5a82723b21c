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
	// stretch is how many bytes of an object one request reads, if the whole object is
	// read.
	stretch = 8 << 20
	// prefetchBytes bounds the data that is read ahead, over all objects of a sequence.
	prefetchBytes = 64 << 20
	// prefetchStretches bounds the number of these reads: objects may be small.
	prefetchStretches = 64
	// aloneBytes is prefetchBytes for an object that is read on its own.
	aloneBytes = 6 * stretch
)

// reading reads objects from start to end. It reads stretches ahead, also of the next
// objects. Bytes that are read again are requested again, unless they are still in
// memory. It is safe for concurrent use.
type reading struct {
	from   *cloud
	ctx    context.Context //nolint:containedctx // ends what is read
	cancel context.CancelFunc
	next   map[string]string // the object that follows an object, by path
	most   int64             // bytes that may be read ahead and not yet used

	running sync.WaitGroup
	mu      sync.Mutex
	have    map[stretchOf]*loaded
	used    []stretchOf      // used stretches that may be freed, the oldest first
	unused  int64            // bytes that are read or being read, and not yet used
	last    map[string]int64 // the stretch taken last, by path
}

// stretchOf identifies a stretch: bytes [index*stretch, (index+1)*stretch) of an object.
type stretchOf struct {
	path  string
	index int64
}

// loaded is a stretch that is or was being read. buf and err are valid once done is
// closed.
type loaded struct {
	done chan struct{}
	buf  []byte
	err  error
	used bool
	pins int // readers that are copying from it
}

// keptStretches is how many used stretches stay in memory. Several shards are read at
// once, and each needs its own.
const keptStretches = 6

// reading returns a reading of objects. Objects follow each other in the order of paths.
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

// close cancels all reads and waits for them. Used stretches are kept for a second pass.
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

// twice keeps what is read of small objects that are read twice. It is safe for
// concurrent use; a nil twice keeps nothing.
type twice struct {
	mu   sync.Mutex
	read map[stretchOf][]byte
	done bool // the first pass has ended
}

// twiceBytes is the total size up to which objects are kept between two passes.
const twiceBytes = prefetchBytes

// put keeps a stretch during the first pass, and reports whether it did. Then it owns
// buf.
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

// take returns a kept stretch; nil if there is none. In the second pass each stretch is
// returned once.
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

// small reports whether files are small enough together to be kept for a second pass.
func (f *Files) small(paths []string) bool {
	size := int64(0)
	for _, p := range paths {
		if info, err := f.stat(p); err == nil {
			size += info.Size()
		}
	}
	return size <= twiceBytes
}

// readTwice announces that files will be read twice. If they are small, what is read is
// kept until the function that it returns is called; the second pass then consumes it.
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

// open implements sequence.
func (r *reading) open(p string) (*File, error) {
	o, err := r.from.object(r.ctx, p)
	if err != nil {
		return nil, err
	}
	return &File{handle: &objectFile{reading: r, path: p, object: o}, size: o.Size, version: o.Version}, nil
}

// take returns a stretch of an object, and reads ahead. It blocks until the stretch has
// been read. The caller calls give afterwards.
func (r *reading) take(p string, o object.Info, index int64) (*loaded, error) {
	at := stretchOf{p, index}
	r.mu.Lock()
	l := r.startLocked(at, o)
	// The pin keeps the buffer from being freed while it is read or copied.
	l.pins++
	if !l.used {
		l.used = true
		r.unused -= int64(len(l.buf))
	}
	// Only sequential reads start read-ahead. A read of the end of a file, such as a
	// table of contents, says nothing about what is read next.
	if last, ok := r.last[p]; index == 0 || ok && (index == last || index == last+1) {
		r.prefetchLocked(at, o)
	}
	r.last[p] = index
	r.mu.Unlock()
	<-l.done // ends at the latest with ctx
	if l.err != nil {
		r.give(at, l)
		return nil, l.err
	}
	return l, nil
}

// give returns a stretch. A stretch that could not be read is forgotten, so that the next
// take tries again.
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
	// The oldest used stretches go back to the pool, or to the second pass.
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

// leave drops the read-ahead of an object that is closed. A read that is still running
// keeps its buffer from the pool.
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

// startLocked starts reading a stretch, unless it is in memory or being read. r.mu is
// held.
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

// prefetchLocked reads what follows a stretch, as far as r.most allows. r.mu is held.
func (r *reading) prefetchLocked(at stretchOf, o object.Info) {
	for range prefetchStretches {
		if at.index++; at.index*stretch >= o.Size {
			// Read-ahead continues in the next object: objects may be smaller than the
			// bound.
			next, ok := r.next[at.path]
			if !ok {
				return
			}
			info, err := r.from.known(next)
			if err != nil {
				return // opening it will report the error
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

// read reads a part of an object in the version that was listed. If the bucket stays
// unreachable, that is recorded for broken.
func (c *cloud) read(ctx context.Context, o object.Info, offset int64, buf []byte) error {
	err := Attempt(ctx, func() error { return c.from.Range(ctx, o.Key, o.Version, offset, buf) })
	if ctx.Err() == nil && interrupted(err) {
		c.gone.CompareAndSwap(nil, &err)
	}
	return err
}

// objectFile is an open object that is read sequentially.
type objectFile struct {
	reading *reading
	own     *reading // a reading that ends with this file; nil if others share it
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

// some reads at least one byte, within one stretch.
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

// seekTo computes the new offset of a Seek.
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

// Close implements io.Closer. It also ends a reading of its own.
func (f *objectFile) Close() error {
	f.reading.leave(f.path)
	if f.own != nil {
		f.own.close()
	}
	return nil
}

// partsFile is an open object that is read at any offset, by one goroutine.
type partsFile struct {
	from   *cloud
	ctx    context.Context //nolint:containedctx // ends what is read
	object object.Info
	at     int64
	window []byte // data of the last request
	begin  int64  // offset of window in the object
	least  int64  // least size of a request
}

// openParts implements system. Each request reads at least least bytes, because the
// neighbours of wanted bytes are often wanted next.
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

// load requests at least n bytes at an offset. At the end of the object the window
// extends to the front: files with a footer are read backwards from there.
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
