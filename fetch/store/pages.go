package store

import (
	"cmp"
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"bowstring/schema"
)

const (
	// maxPages is how many pages EachPage has in flight or waiting, and maxPageBytes
	// their bytes, except that one larger page is allowed.
	maxPages     = 64
	maxPageBytes = 32 << 20
	// maxLists is how many lists of pages are on their way or waiting.
	maxLists = 8
)

// EachPage visits the pages of some chunks of a snapshot in order, one after the other, in the caller's
// goroutine, and reads those that come next meanwhile: a store may be far away. rows are open until visit is
// back. The error is that of the first page that cannot be read or visited, or ctx's.
func EachPage(ctx context.Context, snap *schema.Snapshot, chunks []schema.Chunk, get getFunc,
	visit func(page schema.Chunk, rows *schema.Manifest) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	w := &pageWalk{
		get: get, room: semaphore.NewWeighted(maxPageBytes),
		lists: make(chan *pending, maxLists), pages: make(chan *pending, maxPages),
	}
	w.running.Go(func() { w.readLists(ctx, chunks) })
	w.running.Go(func() { w.readPages(ctx) })
	defer w.running.Wait()
	defer func() {
		for p := range w.pages { // pages that came and are not wanted
			<-p.done
			p.blob.Release()
		}
	}()
	defer cancel()
	for p := range w.pages {
		<-p.done
		if p.err != nil {
			p.blob.Release()
			return cmp.Or(context.Cause(ctx), p.err)
		}
		err := schema.VisitPage(snap, p.chunk, p.blob, func(rows *schema.Manifest) error {
			return visit(p.chunk, rows)
		})
		if err != nil {
			return err
		}
		w.room.Release(p.weight())
	}
	return context.Cause(ctx)
}

// getFunc reads a blob, as Store.Get does.
type getFunc = func(context.Context, schema.BlobRef) (schema.Blob, error)

// pageWalk is an EachPage under way. Its goroutines end with the context, or with the last page.
type pageWalk struct {
	get     getFunc
	room    *semaphore.Weighted // for pages
	lists   chan *pending       // in order; closed behind the last one
	pages   chan *pending       // likewise
	running sync.WaitGroup
}

// pending is a chunk whose list of pages is read, or a page. done is closed when the rest is there.
type pending struct {
	chunk schema.Chunk
	done  chan struct{}
	blob  schema.Blob    // of a page
	pages []schema.Chunk // of a list
	err   error
}

// weight is what a page takes of the room.
func (p *pending) weight() int64 { return min(max(p.chunk.Size, 0), maxPageBytes) }

// readLists begins to read the lists of pages.
func (w *pageWalk) readLists(ctx context.Context, chunks []schema.Chunk) {
	defer close(w.lists)
	for _, c := range chunks {
		l := &pending{chunk: c, done: make(chan struct{})}
		if c.Pages == 0 {
			l.pages = []schema.Chunk{c}
			close(l.done)
		} else {
			w.running.Go(func() {
				defer close(l.done)
				blob, err := w.get(ctx, c.BlobRef)
				if l.err = err; err == nil {
					l.pages, l.err = c.OpenIndex(blob.Bytes())
					blob.Release()
				}
			})
		}
		select {
		case w.lists <- l:
		case <-ctx.Done():
			return
		}
	}
}

// readPages begins to read pages, as their lists come.
func (w *pageWalk) readPages(ctx context.Context) {
	defer close(w.pages)
	for l := range w.lists {
		<-l.done
		if l.err != nil {
			select {
			case w.pages <- l:
			case <-ctx.Done():
			}
			return
		}
		for _, page := range l.pages {
			p := &pending{chunk: page, done: make(chan struct{})}
			if w.room.Acquire(ctx, p.weight()) != nil {
				return
			}
			w.running.Go(func() {
				defer close(p.done)
				p.blob, p.err = w.get(ctx, page.BlobRef)
			})
			select {
			case w.pages <- p:
			case <-ctx.Done():
				<-p.done
				p.blob.Release()
				return
			}
		}
	}
}
