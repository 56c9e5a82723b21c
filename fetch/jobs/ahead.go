package jobs

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

// OpenAhead begins to open the newest snapshot of each dataset, and does not wait for that: of a store that is far away
// the first job would, for some round trips. Where there are more datasets than stay open while nobody reads them, nobody
// knows which of them will be wanted, and none is opened. What cannot be opened is left to who asks for it. It is called
// once at most, before Close, which ends it.
func (js *Jobs) OpenAhead() {
	namer, ok := js.store.(store.Namer)
	if !ok {
		return
	}
	js.ahead.running.Go(func() {
		ctx := js.ahead.context
		names, err := namer.Names(ctx)
		if err != nil {
			js.logger.DebugContext(ctx, "no dataset is opened ahead of its use", "error", err)
			return
		}
		if len(names) > js.snapshots.maxIdle {
			return
		}
		for _, name := range names {
			js.ahead.running.Go(func() {
				if err := js.openAhead(ctx, name); err != nil {
					js.logger.DebugContext(ctx, "a dataset is not opened ahead of its use", "dataset", name, "error", err)
				}
			})
		}
	})
}

func (js *Jobs) openAhead(ctx context.Context, dataset string) (err error) {
	defer recovered(ctx, js.logger, &err)
	s, err := js.snapshots.get(ctx, dataset, 0)
	if err == nil {
		s.Release() // it stays open
	}
	return err
}
