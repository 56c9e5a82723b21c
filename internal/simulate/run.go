package simulate

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/schema"
)

// Options says how a File is run.
type Options struct {
	// Logger receives what the parts of servers log. Default: nobody does.
	Logger *slog.Logger
}

// Run runs a file to the end of its jobs. It is for one goroutine of a process at a time, as it uses a bubble of
// testing/synctest. A simulation that cannot go on, as of a cluster all of whose nodes are gone for good, is an error.
func Run(f *File, opts Options) (report *Report, err error) {
	small := f.sampled()
	datasets, err := makeAll(small)
	if err != nil {
		return nil, err
	}
	bubble(func() { report, err = run(small, datasets, opts) })
	return report, err
}

// bubble runs f in a bubble, in which time is virtual. The standard library has bubbles for tests alone, and a test
// that nobody runs will do: all that Test wants of it is a place to note failures, and there are none.
func bubble(f func()) {
	if flag.Lookup("test.v") == nil {
		testing.Init()
	}
	synctest.Test(&testing.T{}, func(*testing.T) { f() })
}

func makeAll(f *File) (map[string]*made, error) {
	datasets := map[string]*made{}
	for _, d := range f.Datasets {
		m, err := makeDataset(d, f.Seed)
		if err != nil {
			return nil, fmt.Errorf("make dataset %s up: %w", d.Name, err)
		}
		datasets[d.Name] = m
	}
	return datasets, nil
}

// sampled is the file with the numbers of a sample.
func (f *File) sampled() *File {
	s := *f
	n := float64(f.Sample)
	s.Nodes.Count /= f.Sample
	s.Nodes.Zones = min(s.Nodes.Zones, s.Nodes.Count)
	s.Store.ReadsPerS /= n
	s.Store.BytesPerS /= n
	s.Network.ZoneBytesPerS /= n
	s.Datasets, s.Jobs = append([]Dataset(nil), f.Datasets...), append([]Job(nil), f.Jobs...)
	for i := range s.Datasets {
		s.Datasets[i].Samples /= f.Sample
	}
	for i := range s.Jobs {
		s.Jobs[i].Batch /= f.Sample
		s.Jobs[i].Ranks /= f.Sample
	}
	return &s
}

// oneThread is up to how many rows, which each node looks at, one thread does all.
const oneThread = 50e6

// work is how many rows there are to look at for all nodes.
func (f *File) work() (rows float64) {
	for _, d := range f.Datasets {
		rows += float64(d.Samples) * float64(f.Nodes.Count)
	}
	return rows
}

// errStuck says that a simulation does not go on.
var errStuck = fmt.Errorf("%w: nothing was served for so long that the simulation is given up", schema.ErrUnavailable)

// stuckAfter is for how long nothing may be served while a job runs.
const stuckAfter = 4 * time.Hour

// run is Run within a bubble.
func run(f *File, datasets map[string]*made, opts Options) (*Report, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	// With one thread, what happens in one moment happens in one order, but for what Go draws by itself.
	if f.work() <= oneThread {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	w := newWorld(f, datasets, opts.Logger)
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	var beside sync.WaitGroup
	beside.Go(func() { w.network.run(ctx) })
	if err := w.start(ctx); err != nil {
		return nil, errors.Join(err, w.end(), closed(stop, &beside))
	}
	var jobs []*job
	for _, spec := range f.Jobs {
		jobs = append(jobs, newJob(w, spec))
	}
	series := newSeries(w)
	happening, calm := context.WithCancel(ctx)
	beside.Go(func() { series.run(happening) })
	beside.Go(func() { w.happen(happening) })
	beside.Go(func() { w.guard(happening, jobs, stop) })
	errs := make([]error, len(jobs))
	var all sync.WaitGroup
	for i, j := range jobs {
		all.Go(func() { errs[i] = j.run(ctx) })
	}
	all.Wait()
	series.take()
	calm()
	report := w.report(jobs, series)
	err := errors.Join(errors.Join(errs...), w.end(), errors.Join(w.errs...))
	stop(nil)
	beside.Wait()
	if err != nil {
		return nil, err
	}
	return report, nil
}

func closed(stop context.CancelCauseFunc, beside *sync.WaitGroup) error {
	stop(nil)
	beside.Wait()
	return nil
}

// guard gives the simulation up when nothing is served for long.
func (w *world) guard(ctx context.Context, jobs []*job, stop context.CancelCauseFunc) {
	last := int64(-1)
	for {
		if sleepUntil(ctx, time.Now().Add(stuckAfter)) != nil {
			return
		}
		running := false
		for _, j := range jobs {
			running = running || w.since() > seconds(j.StartS)+stuckAfter
		}
		now := w.served.Load()
		if running && now == last {
			stop(errStuck)
			return
		}
		last = now
	}
}

// start starts the nodes that are there from the beginning.
func (w *world) start(ctx context.Context) error {
	absent, known := map[int]bool{}, map[int]bool{}
	for _, x := range byTime(w.file.Faults) {
		if x.Node != nil && !known[int(*x.Node)] {
			known[int(*x.Node)] = true
			absent[int(*x.Node)] = x.Kind == Join
		}
	}
	var first []*node
	for _, n := range w.nodes {
		if !absent[n.index] {
			first = append(first, n)
		}
	}
	if !w.file.Nodes.Alone {
		if err := w.announce(ctx, first); err != nil {
			return err
		}
	}
	for _, n := range first {
		if err := n.begin(false); err != nil {
			return fmt.Errorf("start %s: %w", n.id, err)
		}
	}
	return nil
}

// end ends all nodes, and their caches.
func (w *world) end() error {
	errs := make([]error, len(w.nodes))
	var all sync.WaitGroup
	for i, n := range w.nodes {
		all.Go(func() {
			errs[i] = n.end(true)
			if n.cache != nil {
				errs[i] = errors.Join(errs[i], n.cache.Close())
				n.cache = nil
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
