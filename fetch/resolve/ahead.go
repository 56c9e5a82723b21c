package resolve

import (
	"context"
	"sync"

	"bowstring/fetch/store"
)

// ahead is what is done before anybody asks for it.
type ahead struct {
	context context.Context //nolint:containedctx // ends when it is to end
	cancel  context.CancelCauseFunc
	running sync.WaitGroup
}

func (a *ahead) init() { a.context, a.cancel = context.WithCancelCause(context.Background()) }

// end ends what is being done, and waits for it.
func (a *ahead) end() {
	a.cancel(errClosing())
	a.running.Wait()
}

// OpenAhead begins to open the newest snapshot of each dataset: of a store that is far away the first job would wait for
// that for some round trips. Where there are more datasets than stay open while nobody reads them, nobody
// knows which of them will be wanted, and none is opened. What cannot be opened is left to who asks for it. It is called
// once at most, before Close, which ends it. The channel is closed when it has ended.
func (rv *Resolver) OpenAhead() (ended <-chan struct{}) {
	done := make(chan struct{})
	namer, ok := rv.store.(store.Namer)
	if !ok {
		close(done)
		return done
	}
	rv.ahead.running.Go(func() {
		defer close(done)
		ctx := rv.ahead.context
		names, err := namer.Names(ctx)
		if err != nil {
			rv.logger.DebugContext(ctx, "no dataset is opened ahead of its use", "error", err)
			return
		}
		if len(names) > rv.snapshots.maxIdle {
			return
		}
		var opening sync.WaitGroup
		defer opening.Wait()
		for _, name := range names {
			opening.Go(func() {
				if err := rv.openAhead(ctx, name); err != nil {
					rv.logger.DebugContext(ctx, "a dataset is not opened ahead of its use", "dataset", name, "error", err)
				}
			})
		}
	})
	return done
}

func (rv *Resolver) openAhead(ctx context.Context, dataset string) (err error) {
	defer recovered(ctx, rv.logger, &err)
	s, err := rv.snapshots.get(ctx, dataset, 0)
	if err == nil {
		s.Release() // it stays open
	}
	return err
}
