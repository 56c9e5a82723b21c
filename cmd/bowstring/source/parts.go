package source

import (
	"context"
	"errors"
	"runtime"
	"sync"

	"golang.org/x/sync/semaphore"
)

const (
	// partsWalked is how many shards in a bucket are walked at once. Walking a shard is
	// one round trip after another, so parallel shards hide the latency.
	partsWalked = 16
	// partsRead is how many shards are read at once. They share the memory for
	// read-ahead.
	partsRead = 4
	// partSamples is how many samples of a shard may wait for those of earlier shards.
	partSamples = 256
	// partBytes is the size of the waiting samples of a shard; a single one may be
	// larger.
	partBytes = 8 << 20
)

// parts reads several shards at once and yields their samples in the order of the shards.
type parts struct {
	n int
	// reads reports whether a shard must be read.
	reads func(i int) bool
	// known yields the samples of a shard that is not read. It returns false if iteration
	// must end.
	known func(i int) (more bool)
	// read yields the samples of a shard until yield returns false. Its error is about
	// the shard. Several goroutines call it, each for another shard.
	read func(ctx context.Context, i int, yield func(Sample) bool) error
	// ended is called after the samples of a shard, with the shard's error. It returns
	// false if iteration must end.
	ended func(i int, err error) (more bool)
}

// yieldParts yields the samples of shards in order: stored rows for known shards, and the
// results of read for all others. A shard with an error ends with a bad sample named
// after the shard: its earlier samples are valid.
func (f *Files) yieldParts(ctx context.Context, shards []shard, walked bool,
	read func(ctx context.Context, i int, yield func(Sample) bool) error, yield func(Sample, error) bool) {
	ended := func(i int, err error) bool {
		if end := f.ended(ctx, err); end != nil {
			yield(Sample{}, end)
			return false
		}
		sh := &shards[i]
		return err == nil || yield(Sample{Key: sh.rel, Split: sh.split, Bad: err.Error()}, nil)
	}
	p := parts{
		n:     len(shards),
		reads: func(i int) bool { return shards[i].read() },
		known: func(i int) bool {
			sh := &shards[i]
			if sh.missing != "" {
				return ended(i, errors.New(sh.missing))
			}
			return f.yieldKnown(ctx, sh, yield)
		},
		read:  read,
		ended: ended,
	}
	p.yield(ctx, f.atOnce(walked), yield)
}

// atOnce returns how many shards are read, or walked, at once.
func (f *Files) atOnce(walked bool) int {
	switch _, zip := f.system.(*zipped); {
	case zip: // all shards are one file
		return 1
	case f.bucket() == nil:
		return min(partsRead, runtime.GOMAXPROCS(0))
	case walked:
		return partsWalked
	}
	return partsRead
}

// waiting is the queue of a shard's samples. Its goroutine writes it, and that of yield
// reads it.
type waiting struct {
	samples chan waitingSample
	room    *semaphore.Weighted
	err     error // set before samples is closed
}

type waitingSample struct {
	Sample

	weight int64
}

// put queues a sample. If the iteration has ended, it releases the sample and returns
// false.
func (w *waiting) put(ctx context.Context, s Sample) bool {
	weight := min(max(s.Size, 1), partBytes)
	if w.room.Acquire(ctx, weight) == nil {
		select {
		case w.samples <- waitingSample{s, weight}:
			return true
		case <-ctx.Done():
		}
	}
	if s.Release != nil {
		s.Release()
	}
	return false
}

// yield yields the samples of the shards. When it returns, all goroutines have ended and
// all queued samples are released.
func (p *parts) yield(ctx context.Context, atOnce int, yield func(Sample, error) bool) {
	if atOnce == 1 {
		p.yieldAlone(ctx, yield)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	begun := make([]*waiting, p.n)
	defer func() {
		// The order matters: cancel unblocks the writers, and their channels are drained
		// after they have ended.
		cancel()
		running.Wait()
		for _, w := range begun {
			if w != nil {
				for s := range w.samples {
					if s.Release != nil {
						s.Release()
					}
				}
			}
		}
	}()
	next := 0
	for i := range p.n {
		for ; next < min(i+atOnce, p.n); next++ {
			if n := next; p.reads(n) {
				w := &waiting{samples: make(chan waitingSample, partSamples), room: semaphore.NewWeighted(partBytes)}
				begun[n] = w
				running.Go(func() {
					defer close(w.samples)
					w.err = p.read(ctx, n, func(s Sample) bool { return w.put(ctx, s) })
				})
			}
		}
		w := begun[i]
		if w == nil {
			if !p.known(i) {
				return
			}
			continue
		}
		for s := range w.samples {
			w.room.Release(s.weight)
			if !yield(s.Sample, nil) {
				return
			}
		}
		begun[i] = nil
		if !p.ended(i, w.err) {
			return
		}
	}
}

// yieldAlone yields the samples of the shards in the calling goroutine, one shard after
// another.
func (p *parts) yieldAlone(ctx context.Context, yield func(Sample, error) bool) {
	for i := range p.n {
		if !p.reads(i) {
			if !p.known(i) {
				return
			}
			continue
		}
		more := true
		err := p.read(ctx, i, func(s Sample) bool {
			more = yield(s, nil)
			return more
		})
		if !more || !p.ended(i, err) {
			return
		}
	}
}
