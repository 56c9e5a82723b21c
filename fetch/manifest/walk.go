package manifest

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"bowstring/schema"
)

const (
	// walkBytes is how much of a manifest that is gone through is on its way at once,
	// and walkMost how many pages.
	walkBytes = 32 << 20
	walkMost  = 256
	// chunksAtOnce is how many chunks have their pages listed at the same time.
	chunksAtOnce = 64
)

// Ahead begins to read the pages that the samples at some positions lie in, but for the
// last of very many, so that they are there when they are wanted. It returns at once.
func (m *Manifest) Ahead(ctx context.Context, positions []int64) {
	if m.whole {
		return
	}
	m.cache.start(func() {
		_, needs, err := m.needs(ctx, positions)
		if err != nil {
			return // who reads the rows is told
		}
		needs = needs[:min(len(needs), pagesAtOnce)]
		_ = m.visitNeeds(ctx, needs, func(*need, *schema.Page) error { return nil }) // as above
	})
}

// Walk visits the pages with rows in [from, to), in any order and several at once. start is the
// position of a page's first row; a page is open as long as visit is not back. need, if it is not nil, is
// asked for each chunk that lists pages, and for each page, and where it says no, nothing of it is read. It
// may be asked several times at once, and more than visit then comes to see.
//
// Of what cannot be read or visited, the error at the least position is returned, however things turn out: what lies
// before it goes on. When ctx ends, that is the error.
func (m *Manifest) Walk(ctx context.Context, from, to int64, need func(start int64, run *schema.Chunk) bool,
	visit func(ctx context.Context, start int64, p *schema.Page) error,
) error {
	if from >= to {
		return nil
	}
	if need == nil {
		need = func(int64, *schema.Chunk) bool { return true }
	}
	first, last := m.chunks.of(from), m.chunks.of(to-1)
	var bytes, most int64 // of a page, about; pages that there may be
	for i := first; i <= last; i++ {
		c := &m.Snapshot().Chunks[i]
		pages := int64(max(c.Pages, 1))
		bytes = max(bytes, c.ManifestBytes()/pages)
		rows := max(c.Rows/pages, 1)
		most += min(pages, (min(to-m.chunks.at[i], c.Rows)-max(from-m.chunks.at[i], 0))/rows+2)
	}
	w := &walk{m: m, ctx: ctx, from: from, to: to, need: need, visit: visit}
	w.failedAt.Store(to)
	chunks, pages := make(chan int), make(chan page)
	var g errgroup.Group
	g.Go(func() error {
		defer close(chunks)
		for c := first; c <= last && w.goesOn(m.chunks.at[c]); c++ {
			chunks <- c
		}
		return nil
	})
	var listing sync.WaitGroup
	for range min(last-first+1, chunksAtOnce) {
		listing.Add(1)
		g.Go(func() error {
			defer listing.Done()
			for c := range chunks {
				start := m.chunks.at[c]
				w.at(start, func() error { return w.list(c, pages) })
			}
			return nil
		})
	}
	g.Go(func() error {
		listing.Wait()
		close(pages)
		return nil
	})
	for range min(walkMost, int(min(max(4, walkBytes/max(bytes, 1)), max(most, 1)))) {
		g.Go(func() error {
			for p := range pages {
				w.at(p.start, func() error { return w.page(p) })
			}
			return nil
		})
	}
	_ = g.Wait() // they tell w
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return w.err
}

// walk is a Walk under way.
type walk struct {
	m        *Manifest
	ctx      context.Context
	from, to int64
	need     func(int64, *schema.Chunk) bool
	visit    func(context.Context, int64, *schema.Page) error

	failedAt atomic.Int64 // the position of err, to if there is none: what lies from there on is left
	mu       sync.Mutex
	err      error // guarded by mu
}

// page is a page to be read.
type page struct {
	schema.Chunk
	start int64
}

// goesOn reports whether what lies at a position is still wanted.
func (w *walk) goesOn(start int64) bool { return start < w.failedAt.Load() && w.ctx.Err() == nil }

// at does something for a run of rows, if it is still wanted, and notes its error.
func (w *walk) at(start int64, do func() error) {
	if !w.goesOn(start) {
		return
	}
	err := w.m.cache.safely(do)()
	if err == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if start = max(start, w.from); start < w.failedAt.Load() {
		w.failedAt.Store(start)
		w.err = err
	}
}

// list sends the pages of a chunk that are needed.
func (w *walk) list(c int, pages chan<- page) error {
	run := &w.m.Snapshot().Chunks[c]
	at := w.m.chunks.at[c]
	if run.Pages > 0 && !w.need(at, run) {
		return nil
	}
	l, err := w.m.list(w.ctx, c)
	if err != nil {
		return err
	}
	for i := range l.pages {
		p := page{l.pages[i], at + l.at[i]}
		if p.start >= w.to || p.start+p.Rows <= w.from || !w.goesOn(p.start) || !w.need(p.start, &p.Chunk) {
			continue
		}
		pages <- p
	}
	return nil
}

func (w *walk) page(p page) error {
	e, err := w.m.page(w.ctx, p.Chunk, p.start)
	if err != nil {
		return err
	}
	defer e.release()
	return w.visit(w.ctx, p.start, e.page)
}
