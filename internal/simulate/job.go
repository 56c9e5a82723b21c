package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"bowstring/fetch"
	"bowstring/schema"
)

// job is a training program with all of its ranks. Each rank has a goroutine.
type job struct {
	Job
	world *world
	ranks []*rank
	steps meeting // after each step, of ranks with more steps in their epoch
	ends  meeting // of epochs

	mu     sync.Mutex
	epochs []*epochTally
}

// epochTally counts one epoch.
type epochTally struct {
	began, ended  time.Time
	before, after counters
	first         time.Duration // until the first step had all its samples
	samples       int64
	bytes         int64
	waits         Waits   // summed over ranks
	held          float64 // share of the samples in objects, at its end
}

// rank is one process of a job. Its goroutine owns the counters until an epoch ends.
type rank struct {
	job  *job
	rank int
	home *node

	samples, bytes int64
	first          time.Duration
	waits          Waits
}

// againAfter is how long a client waits before it continues at another node.
const againAfter = 100 * time.Millisecond

// newJob places ranks on nodes in order, beginning at First, and starts over after the last node.
func newJob(w *world, spec Job) *job {
	j := &job{Job: spec, world: w}
	j.steps.init(int(spec.Ranks))
	j.ends.init(int(spec.Ranks))
	for r := range int(spec.Ranks) {
		at := (int(spec.First) + r/int(w.file.Nodes.Ranks)) % len(w.nodes)
		j.ranks = append(j.ranks, &rank{job: j, rank: r, home: w.nodes[at]})
	}
	return j
}

// placed names the node of each rank, if that does not follow from the nodes' weights.
func (j *job) placed() []string {
	f := &j.world.file
	if f.Nodes.Alone || j.Assign != schema.AssignLocal || j.First == 0 && j.Ranks == f.Nodes.Count*f.Nodes.Ranks {
		return nil
	}
	names := make([]string, len(j.ranks))
	for r := range names {
		names[r] = j.ranks[r].home.id
	}
	return names
}

// run runs the job to its end.
func (j *job) run(ctx context.Context) error {
	if err := sleepUntil(ctx, j.world.at(j.StartS)); err != nil {
		return err
	}
	errs := make([]error, len(j.ranks))
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	for i, r := range j.ranks {
		all.Go(func() {
			if errs[i] = r.run(ctx); errs[i] != nil {
				stop(errs[i])
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("%s: %w", j.Name, err)
		}
	}
	return nil
}

// begin is called by each rank that begins an epoch. The first one creates the tally.
func (j *job) begin(epoch int64) *epochTally {
	j.mu.Lock()
	defer j.mu.Unlock()
	if int64(len(j.epochs)) == epoch {
		j.epochs = append(j.epochs, &epochTally{began: time.Now(), before: j.world.count()})
	}
	return j.epochs[epoch]
}

// end is called by each rank that ends an epoch.
func (j *job) end(e *epochTally, r *rank) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e.samples, e.bytes = e.samples+r.samples, e.bytes+r.bytes
	e.first = max(e.first, r.first)
	e.waits.add(&r.waits)
	e.ended, e.after, e.held = time.Now(), j.world.count(), j.world.held()
	r.samples, r.bytes, r.first, r.waits = 0, 0, 0, Waits{}
}

// run reads all epochs of the job. Ranks meet between epochs. A rank that has fewer steps
// than others leaves the barrier of steps, so that the others do not wait for it.
func (r *rank) run(ctx context.Context) error {
	j := r.job
	for epoch := range j.Epochs {
		if epoch > 0 {
			if err := sleepUntil(ctx, time.Now().Add(seconds(j.PauseS))); err != nil {
				return err
			}
		}
		tally := j.begin(epoch)
		if err := r.epoch(ctx, epoch, tally); err != nil {
			return err
		}
		if !j.Apart {
			j.steps.leave()
		}
		j.end(tally, r)
		if err := j.ends.meet(ctx, func() error { j.steps.all(); return nil }); err != nil {
			return err
		}
	}
	return nil
}

// epoch reads the rank's share of an epoch. After a failure it continues at the next
// running node, from the step that it has reached.
func (r *rank) epoch(ctx context.Context, epoch int64, tally *epochTally) error {
	j := r.job
	t := schema.Ticket{Rank: r.rank, Request: schema.Request{
		Dataset: j.Dataset, Split: "train", Batch: j.Batch, Order: j.Order,
		Shuffle: &schema.Shuffle{Seed: j.Seed, Epoch: uint64(epoch)},
		World:   &schema.World{Size: j.Job.Ranks}, Ranks: j.placed(),
	}}
	if j.Assign != schema.AssignPlan && !j.world.file.Nodes.Alone {
		t.Assign = j.Assign
	}
	if j.Steps > 0 {
		t.Stop = &j.Steps
	}
	// A stop at or after the end of the epoch is no stop.
	if rows := j.world.store.datasets[j.Dataset].snap.Rows(); t.Stop != nil && *t.Stop >= (rows+j.Batch-1)/j.Batch {
		t.Stop = nil
	}
	at := r.home
	for {
		done, to, err := r.readOn(ctx, at, &t, tally)
		switch {
		case done:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("epoch %d does not end: %w", epoch, errors.Join(context.Cause(ctx), err))
		case to != nil:
			at = to
			continue
		case err != nil && !errors.Is(err, schema.ErrUnavailable) && !errors.Is(err, context.Canceled):
			return err
		}
		if err := sleepUntil(ctx, time.Now().Add(againAfter)); err != nil {
			return err
		}
		at = j.world.another(at)
	}
}

// piece is a record batch as its consumer gets it.
type piece struct {
	samples int
	bytes   int64
	last    bool // of the rank's share of the step
	resume  schema.Ticket
	wait    fetch.Wait
	encode  time.Duration // and in flight
}

// readOn reads from a node until that fails. t is the progress, and is updated. to is the
// node that the rank belongs to, if it is another one that runs.
func (r *rank) readOn(ctx context.Context, at *node, t *schema.Ticket,
	tally *epochTally) (done bool, to *node, err error) {
	server := at.lives()
	if server == nil {
		return false, nil, errDown
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(server.gone, func() { stop(errDown) })()
	opened, err := server.engine.Open(ctx, t.Request)
	if err != nil {
		return false, nil, err
	}
	defer opened.Close()
	if l := opened.Layout(); l != nil && !r.job.world.file.Nodes.Alone {
		if n := r.job.world.byID[l.Node(opened.NodeOf(r.rank)).ID]; n != nil && n != at && n == r.home &&
			n.lives() != nil {
			return false, n, nil
		}
	}
	s, err := server.engine.Stream(ctx, opened, *t)
	if err != nil {
		return false, nil, err
	}
	pieces := make(chan piece)
	var serving sync.WaitGroup
	var broken error
	serving.Go(func() { broken = serve(ctx, at, s, pieces) })
	err = r.train(ctx, pieces, t, tally)
	stop(err)
	serving.Wait()
	s.Close()
	if err == nil && broken == nil {
		return true, nil, nil
	}
	if cause := context.Cause(server.gone); cause != nil && server.gone.Err() != nil {
		return false, nil, errDown
	}
	return false, nil, errors.Join(err, broken)
}

// serve delivers batches as a server does: the next one is ready while the client
// computes.
func serve(ctx context.Context, at *node, s *fetch.Stream, pieces chan<- piece) error {
	defer close(pieces)
	for {
		b, err := s.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		p := piece{samples: b.Rows, last: b.Last, resume: b.Resume, wait: b.Wait}
		for i := range b.Blobs[0] {
			p.bytes += int64(len(b.Blobs[0][i].Bytes()))
		}
		began := time.Now()
		if err = at.work(ctx, p.samples, p.bytes); err == nil {
			p.encode = b.Wait.Encode + time.Since(began)
			select {
			case pieces <- p:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		b.Release()
		if err != nil {
			return err
		}
	}
}

// train takes batches, and computes when a step is complete. Unless the ranks are apart,
// all ranks compute at once, after the last of them has its samples: a step of
// synchronous training.
func (r *rank) train(ctx context.Context, pieces <-chan piece, t *schema.Ticket, tally *epochTally) error {
	w, j := r.job.world, r.job
	for {
		began := time.Now()
		p, ok := <-pieces
		waited := time.Since(began)
		r.waits.Data += waited.Seconds()
		if !ok {
			return nil
		}
		w.served.Add(int64(p.samples))
		w.servedBytes.Add(p.bytes)
		r.samples, r.bytes = r.samples+int64(p.samples), r.bytes+p.bytes
		r.waits.Store += p.wait.Store.Seconds()
		r.waits.Spill += p.wait.Spill.Seconds()
		r.waits.Peer += p.wait.Peer.Seconds()
		r.waits.Consumer += p.wait.Window.Seconds()
		r.waits.Encode += p.encode.Seconds()
		*t = p.resume
		if !p.last {
			continue
		}
		began = time.Now()
		if r.first == 0 {
			r.first = began.Sub(tally.began)
		}
		compute := func() error { return sleepUntil(ctx, time.Now().Add(millis(j.StepMS))) }
		if j.Apart {
			if err := compute(); err != nil {
				return err
			}
			r.waits.Compute += j.StepMS / 1e3
			continue
		}
		if err := j.steps.meet(ctx, compute); err != nil {
			return err
		}
		r.waits.Compute += j.StepMS / 1e3
		r.waits.Ranks += max(time.Since(began).Seconds()-j.StepMS/1e3, 0)
	}
}

// another returns the next running node; the same one if there is no other.
func (w *world) another(n *node) *node {
	for i := range w.nodes {
		if other := w.nodes[(n.index+1+i)%len(w.nodes)]; other.lives() != nil {
			return other
		}
	}
	return n
}

// meeting is a barrier of ranks. It can be used again and again.
type meeting struct {
	mu     sync.Mutex
	whole  int           // number of ranks that take part
	wanted int           // number that is waited for now
	there  int           // number that has arrived
	next   chan struct{} // closed when all have arrived
	// meeting is what the last rank to arrive calls.
	meeting func() error
}

func (m *meeting) init(n int) { m.whole, m.wanted, m.next = n, n, make(chan struct{}) }

// meet waits until all ranks have arrived and the last of them has called then.
func (m *meeting) meet(ctx context.Context, then func() error) error {
	m.mu.Lock()
	m.there++
	if m.there == m.wanted {
		m.mu.Unlock()
		err := then()
		m.mu.Lock()
		m.openLocked()
		m.mu.Unlock()
		return err
	}
	next := m.next
	m.meeting = then
	m.mu.Unlock()
	select {
	case <-next:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// openLocked releases all waiting ranks, and closes the barrier for the next time.
func (m *meeting) openLocked() {
	m.there, m.meeting = 0, nil
	close(m.next)
	m.next = make(chan struct{})
}

// leave removes a rank, so that the others do not wait for it.
func (m *meeting) leave() {
	m.mu.Lock()
	m.wanted--
	then := m.meeting
	if m.there == 0 || m.there < m.wanted {
		m.mu.Unlock()
		return
	}
	m.mu.Unlock()
	if then != nil {
		_ = then() // the other ranks see their contexts end
	}
	m.mu.Lock()
	m.openLocked()
	m.mu.Unlock()
}

// all makes all ranks take part again.
func (m *meeting) all() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wanted = m.whole
}
