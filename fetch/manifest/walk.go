package manifest

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"bowstring/schema"
)

const (
	// walkBytes is how much of a manifest that is gone through is on its way at once,
	// and walkMost how many pages.
	walkBytes = 32 << 20
	walkMost  = 256
	// chunksAtOnce is how many chunks have their pages listed at the same time.
	chunksAtOnce = 8
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
		var g errgroup.Group
		for _, n := range needs[:min(len(needs), pagesAtOnce)] {
			g.Go(m.cache.safely(func() error {
				if e, err := m.page(ctx, n.page, n.start); err == nil {
					e.release()
				}
				return nil
			}))
		}
		_ = g.Wait() // who reads the rows is told
	})
}

// Walk visits the pages with rows in [from, to), in any order and several at once. start is the
// position of a page's first row; a page is open as long as visit is not back.
func (m *Manifest) Walk(ctx context.Context, from, to int64, visit func(ctx context.Context, start int64, p *schema.Page) error) error {
	if from >= to {
		return nil
	}
	first, last := m.chunks.of(from), m.chunks.of(to-1)
	var bytes int64 // of a page, about
	for i := first; i <= last; i++ {
		c := &m.Snapshot().Chunks[i]
		bytes = max(bytes, c.ManifestBytes()/int64(max(c.Pages, 1)))
	}
	chunks, pages := make(chan int), make(chan need)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(chunks)
		for c := first; c <= last; c++ {
			if err := send(ctx, chunks, c); err != nil {
				return err
			}
		}
		return nil
	})
	var listing sync.WaitGroup
	for range min(last-first+1, chunksAtOnce) {
		listing.Add(1)
		g.Go(m.cache.safely(func() error {
			defer listing.Done()
			for c := range chunks {
				l, err := m.list(ctx, c)
				if err != nil {
					return err
				}
				for p, page := range l.pages {
					start := m.chunks.at[c] + l.at[p]
					if start >= to || start+page.Rows <= from {
						continue
					}
					if err := send(ctx, pages, need{page: page, start: start}); err != nil {
						return err
					}
				}
			}
			return nil
		}))
	}
	g.Go(func() error {
		listing.Wait()
		close(pages)
		return nil
	})
	for range min(walkMost, int(max(4, walkBytes/max(bytes, 1)))) {
		g.Go(m.cache.safely(func() error {
			for n := range pages {
				e, err := m.page(ctx, n.page, n.start)
				if err != nil {
					return err
				}
				if err := e.visit(ctx, n.start, visit); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	return g.Wait()
}

// visit has the page visited, and lets go of it.
func (e *entry) visit(ctx context.Context, start int64, visit func(context.Context, int64, *schema.Page) error) error {
	defer e.release()
	return visit(ctx, start, e.page)
}

// send sends v, unless ctx ends first.
func send[T any](ctx context.Context, to chan<- T, v T) error {
	select {
	case to <- v:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
