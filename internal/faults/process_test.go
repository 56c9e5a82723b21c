//go:build cassandra

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"bowstring/fetch/store"
	"bowstring/fetch/store/cql"
	"bowstring/internal/delay"
	"bowstring/schema"
)

// lapse is after how long the servers forget a process, which says that it is there each
// second: less than most stops take, and than collections are to wait for a process that was killed.
const lapse = 6 * time.Second

// renew is how often a process says so: collections wait for that, and there are to be many.
const renew = time.Second

// opTimeout bounds what a process waits for.
const opTimeout = 20 * time.Second

var datasets = []string{"ants", "bees", "cats"}

// processConfig is the configuration of a process.
type processConfig struct {
	Name, Role string
	History    string // folder
	Address    string // of the store
	Seed       uint64
	ClockBy    time.Duration // by how much its clock is wrong
	RTT        time.Duration // to the nodes
	Patient    bool          // between what it puts and the commit collections come and go
}

// process is one of a run: it does the same kind of thing over and over until
// its input ends.
type process struct {
	processConfig
	*Recorder
	rand  *rand.Rand
	store *cql.Store
	using atomic.Pointer[schema.Snapshot] // what it reads

	tagged map[string]bool // what it has given a tag, as dataset, tag and number
	last   recipe
}

// roles are what processes do, and for how long at most they rest between. Imports are what the others live on.
var roles = map[string]struct {
	do   func(p *process, ctx context.Context) error
	rest time.Duration
}{
	"importer":  {(*process).importOne, 20 * time.Millisecond},
	"dropper":   {(*process).dropOne, 200 * time.Millisecond},
	"tagger":    {(*process).tagOne, time.Second},
	"collector": {(*process).collectOne, 200 * time.Millisecond},
	"reader":    {(*process).readOne, 500 * time.Millisecond},
}

func init() {
	asProcess = func(config string) error {
		var p process
		if err := json.Unmarshal([]byte(config), &p.processConfig); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // its end is all it says
			cancel()
		}()
		return p.run(ctx)
	}
}

func (p *process) run(ctx context.Context) (err error) {
	p.rand = rand.New(rand.NewPCG(p.Seed, 1))
	p.tagged = map[string]bool{}
	if err := p.open(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	for ctx.Err() == nil {
		if err := roles[p.Role].do(p, ctx); err != nil {
			return err // of the history; what the store says is in it
		}
		p.pause(ctx, roles[p.Role].rest)
	}
	return nil
}

// open tries until it has a store.
func (p *process) open(ctx context.Context) (err error) {
	if p.Recorder, err = NewRecorder(p.History, p.Name); err != nil {
		return err
	}
	opts := cql.Options{
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Lapse:  lapse,
		Renew:  renew,
		Clock:  func() time.Time { return time.Now().Add(p.ClockBy) },
	}
	if p.RTT > 0 {
		link := delay.New(delay.Config{RTT: p.RTT, Jitter: p.RTT, Seed: p.Seed})
		opts.Dialer = link
	}
	for ctx.Err() == nil {
		if p.store, err = cql.Open(ctx, p.Address, opts); err == nil {
			p.store.SetInUse(func() []*schema.Snapshot {
				if snap := p.using.Load(); snap != nil {
					return []*schema.Snapshot{snap}
				}
				return nil
			})
			return nil
		}
		fmt.Fprintln(os.Stderr, err)
		p.pause(ctx, time.Second)
	}
	return err
}

func (p *process) close() error {
	if p.store == nil {
		return p.Recorder.Close()
	}
	return errors.Join(p.store.Close(), p.Recorder.Close())
}

// pause waits for up to so long. It is what a user does between two things.
func (p *process) pause(ctx context.Context, most time.Duration) {
	timer := time.NewTimer(time.Duration(p.rand.Int64N(int64(most))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// list returns the snapshots of all datasets, nil if the outcome is unknown.
func (p *process) list(ctx context.Context) (map[string][]int64, error) {
	begun := make([]Event, len(datasets))
	for i, name := range datasets {
		var err error
		if begun[i], err = p.Begin(Event{Do: List, Dataset: name}); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	all, failed := p.store.Datasets(ctx)
	numbers := map[string][]int64{}
	for _, d := range all {
		numbers[d.Name] = d.Snapshots
	}
	for i := range begun {
		how := OK
		if failed != nil {
			how, begun[i].Error = Info, failed.Error()
		} else {
			begun[i].Numbers = numbers[begun[i].Dataset]
		}
		if err := p.End(begun[i], how); err != nil {
			return nil, err
		}
	}
	if failed != nil {
		return nil, nil
	}
	return numbers, nil
}

// do records an operation. f completes the event, and says how it ended; an error that f returns with OK means an
// unknown outcome.
func (p *process) do(ctx context.Context, e Event, f func(ctx context.Context, e *Event) (string, error)) error {
	e, err := p.Begin(e)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	how, err := f(ctx, &e)
	if err != nil {
		e.Error = err.Error()
		if how == OK {
			how = Info
		}
	}
	return p.End(e, how)
}

// dropOne drops a snapshot of a dataset that has many.
func (p *process) dropOne(ctx context.Context) error {
	all, err := p.list(ctx)
	name := datasets[p.rand.IntN(len(datasets))]
	if err != nil || len(all[name]) < 4 {
		return err
	}
	return p.drop(ctx, name, all[name][p.rand.IntN(len(all[name]))])
}

func (p *process) drop(ctx context.Context, dataset string, number int64) error {
	return p.do(ctx, Event{Do: Drop, Dataset: dataset, Number: number},
		func(ctx context.Context, e *Event) (string, error) {
			err := p.store.Drop(ctx, dataset, number)
			switch {
			case errors.Is(err, schema.ErrNotFound):
				e.Absent = true
				return Fail, err
			case errors.Is(err, schema.ErrInvalid): // it has a tag
				return Fail, err
			}
			return OK, err
		})
}

// tagOne gives a snapshot a new tag, reads one, or removes one.
func (p *process) tagOne(ctx context.Context) error {
	all, err := p.list(ctx)
	if err != nil {
		return err
	}
	name := datasets[p.rand.IntN(len(datasets))]
	tag := []string{"prod", "best"}[p.rand.IntN(2)]
	if numbers := all[name]; len(numbers) > 0 && p.rand.IntN(2) == 0 {
		n := numbers[p.rand.IntN(len(numbers))]
		key := fmt.Sprintf("%s %s %d", name, tag, n)
		if !p.tagged[key] && int(n%2) == int(p.Seed%2) { // its own half
			p.tagged[key] = true
			return p.tag(ctx, name, tag, n)
		}
	}
	if p.rand.IntN(6) == 0 {
		return p.untag(ctx, name, tag)
	}
	return p.do(ctx, Event{Do: Tagged, Dataset: name, Tag: tag}, func(ctx context.Context, e *Event) (how string,
		err error) {
		e.Number, err = p.store.Tagged(ctx, name, tag)
		if errors.Is(err, schema.ErrNotFound) {
			e.Number, err = 0, nil
		}
		return OK, err
	})
}

func (p *process) tag(ctx context.Context, dataset, tag string, n int64) error {
	return p.do(ctx, Event{Do: Tag, Dataset: dataset, Tag: tag, Number: n},
		func(ctx context.Context, e *Event) (string, error) {
			err := p.store.Tag(ctx, dataset, tag, n)
			if errors.Is(err, schema.ErrNotFound) {
				e.Absent = true
				return Fail, err
			}
			return OK, err
		})
}

func (p *process) untag(ctx context.Context, dataset, tag string) error {
	return p.do(ctx, Event{Do: Untag, Dataset: dataset, Tag: tag}, func(ctx context.Context, e *Event) (string, error) {
		err := p.store.Untag(ctx, dataset, tag)
		if errors.Is(err, schema.ErrNotFound) {
			e.Absent = true
			return Fail, err
		}
		return OK, err
	})
}

func (p *process) collectOne(ctx context.Context) error {
	_, _, err := p.collect(ctx, 3*opTimeout)
	return err
}

// collect returns what a collection found, nil if it did not come to its end, and whether because something
// is missing.
func (p *process) collect(ctx context.Context, within time.Duration) (r *store.GCReport, damage string, err error) {
	begun, err := p.Begin(Event{Do: Collect})
	if err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	found, failed := p.store.GC(ctx, store.GCOptions{}, nil)
	if failed == nil {
		begun.Count = found.DeadBlobs
		return &found, "", p.End(begun, OK)
	}
	begun.Error = failed.Error()
	if errors.Is(failed, schema.ErrDataLoss) && !errors.Is(failed, schema.ErrUnavailable) {
		begun.Damage = Missing
	}
	return nil, begun.Damage, p.End(begun, Info)
}
