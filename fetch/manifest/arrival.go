package manifest

import (
	"context"

	"bowstring/schema"
)

// arrival is how who wants several entries is told that one of them is there: the channel has room for all
// of which it may be told.
type arrival struct {
	to chan<- int
	n  int // its number among them
}

// wants are pages, or lists of pages, that a call needs. It visits them as they come, so that nothing is kept
// of one while others are waited for, without a goroutine for each.
type wants struct {
	n     int                          // so many
	chunk func(i int) schema.Chunk     // what each is
	place func(i int) Place            // where it is wanted again; nil if nowhere
	visit func(i int, e *entry) error  // what is done with it, while it is open
	lost  func(i int, err error) error // says what could not be read
}

// each has all wants visited, in any order, in this goroutine.
func (c *Cache) each(ctx context.Context, form *schema.Form, w wants) error {
	came := make(chan int, min(w.n, pagesAtOnce))
	open := make(map[int]*entry, cap(came))
	defer func() {
		for _, e := range open {
			e.release()
		}
	}()
	for next := 0; next < w.n || len(open) > 0; {
		for ; next < w.n && len(open) < cap(came); next++ {
			var at Place
			if w.place != nil {
				at = w.place(next)
			}
			e, err := c.want(ctx, form, w.chunk(next), at, &arrival{came, next})
			if err != nil {
				return err
			}
			open[next] = e
		}
		select {
		case i := <-came:
			e := open[i]
			delete(open, i)
			err := e.visited(func() error { return w.visit(i, e) })
			if e.err != nil {
				err = w.lost(i, e.err)
			}
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// visited visits an entry that is ready, unless it has failed, and lets go of it.
func (e *entry) visited(visit func() error) error {
	defer e.release()
	if e.err != nil {
		return e.err
	}
	return visit()
}

// keep adds a hold to one that the caller has.
func (e *entry) keep() *entry {
	e.cache.mu.Lock()
	defer e.cache.mu.Unlock()
	e.users++
	return e
}
